"""Consumers of one group share the work; each key keeps its order. Run it: python examples/consumer_groups.py"""

import threading
from collections import defaultdict

import headrace

MESSAGES = 120


def main() -> None:
    by_key: dict[bytes, list[int]] = defaultdict(list)
    done = threading.Event()
    lock = threading.Lock()

    with headrace.open(":memory:") as hr:

        @hr.worker("orders", group="billing", concurrency=4)
        def bill(d: headrace.Delivery) -> None:
            with lock:
                by_key[d.key or b""].append(int(d.text))
                if sum(map(len, by_key.values())) == MESSAGES:
                    done.set()

        hr.topic("orders").publish_many([headrace.Message(str(n), key=f"user-{n % 6}") for n in range(MESSAGES)])
        with hr.start_workers():
            done.wait()

    print(f"{len(by_key)} keys, {sum(map(len, by_key.values()))} messages")
    print("in order within each key:", all(numbers == sorted(numbers) for numbers in by_key.values()))


if __name__ == "__main__":
    main()
