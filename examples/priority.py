"""Ten lanes, the lowest number first. Run it: python examples/priority.py"""

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:
        jobs = hr.topic("jobs", ordering="none")
        jobs.publish("clean up", priority="low")
        jobs.publish("send the newsletter")
        jobs.publish("reset a password", priority="high")
        jobs.publish("page the operator", priority=0)
        with jobs.consumer() as consumer:
            for d in consumer.until_idle():
                with d:
                    print(d.priority, d.text)


if __name__ == "__main__":
    main()
