"""What was published survives: close (or crash), open again, go on.

Run it: python examples/persistent.py [DIRECTORY]
"""

import sys
import tempfile

import headrace


def run(directory: str) -> None:
    with headrace.open(directory) as hr:
        hr.topic("orders").publish_many([f"order {n}" for n in range(3)])
    # The process could end here in any way: what publish returned for is on the disk.
    with headrace.open(directory) as hr, hr.topic("orders").consumer() as consumer:
        for d in consumer.until_idle():
            with d:
                print(f"after the restart: {d.text}")


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as directory:
        run(directory)


if __name__ == "__main__":
    main()
