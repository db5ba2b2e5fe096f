"""What a program holds: topics, consumers, deliveries, over a broker in the process or over the network.

handles, consumer, publisher          for threads          aio_handles, aio_consumer, aio_publisher   for asyncio
hand, leased, outgoing, settling …    what both kinds stand on: no threads, no waiting
line, channel                         the client's side of the network, sans-io: its requests, its consumers
port, aio_port                        sockets around it, in the shape of ``headrace.calls``
"""
