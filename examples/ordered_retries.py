"""A message that fails holds back its own key only, until it works or dies.

Run it: python examples/ordered_retries.py
"""

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:
        orders = hr.topic("orders", retry={"initial_backoff": "50ms", "max_retries": 2})
        orders.publish("ann 1", key="ann")
        orders.publish("ann 2", key="ann")
        orders.publish("bob 1", key="bob")
        with orders.consumer(prefetch=1) as consumer:
            for d in consumer.until_idle("1s"):
                if d.text == "ann 1":
                    print(f"{d.text} fails, attempt {d.attempt}")
                    d.nack(error="no such address")
                else:
                    print(f"{d.text} works")
                    d.ack()
        (dead,) = orders.dead_letters.list()
        print(f"dead: {dead['value'].decode()} ({dead['reason']}, {dead['error']})")


if __name__ == "__main__":
    main()
