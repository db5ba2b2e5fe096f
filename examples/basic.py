"""A queue: publish, receive, ack. Run it: python examples/basic.py"""

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:
        orders = hr.topic("orders")
        place = orders.publish("one apple", key="user-1", headers={"shop": "eu"})
        print(f"published at offset {place.offset}")

        with orders.consumer(group="billing") as consumer:
            for d in consumer.until_idle():
                with d:  # acked at the end of the block, nacked when it raises
                    print(f"{d.key!r} wants {d.text} (shop {d.headers['shop']}, attempt {d.attempt})")


if __name__ == "__main__":
    main()
