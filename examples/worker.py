"""Workers by decorator: threads for plain functions, tasks for coroutines. Run it: python examples/worker.py

SIGTERM and Ctrl-C stop them when the handlers under way are done; here the last message does.
"""

import asyncio

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:

        @hr.worker("emails", group="mailers", concurrency=4)
        def send(d: headrace.Delivery) -> None:
            print(f"mail to {d.text}")
            hr.topic("audit").publish(f"mailed {d.text}")

        @hr.worker("audit", concurrency=10)
        async def record(d: headrace.Delivery) -> None:
            await asyncio.sleep(0)
            print(f"recorded: {d.text}")
            hr.workers.stop_soon()

        hr.topic("emails").publish("ann@example.org")
        hr.run_workers()


if __name__ == "__main__":
    main()
