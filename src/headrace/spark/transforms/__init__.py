"""Functions from DataFrame to DataFrame, without a broker, a file or a clock: what the jobs compute.

deliveries   events → one row a delivery, one row a message's life in a group
latency      lives → quantiles a minute, consumers, books a day
deaths       dead letters → why things die
traffic      messages → counts and bytes a minute, with a watermark
payloads     messages → those that are as a JSON schema wants them, and what is wrong with the others
json_schema  the schema's rules as plain Python
recorded     events → what was published, pulled and settled, as a simulation needs it
"""
