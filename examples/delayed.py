"""Messages for later: a delay, a time, a change of mind. Run it: python examples/delayed.py"""

from datetime import UTC, datetime, timedelta

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:
        reminders = hr.topic("reminders")
        reminders.publish("soon", delay="200ms")
        reminders.publish("tomorrow", deliver_at=datetime.now(UTC) + timedelta(days=1))
        never = reminders.publish("never", delay="1h")

        print(f"{reminders.schedule.count()['scheduled']} scheduled")
        reminders.schedule.cancel(never.id)
        print(f"{reminders.schedule.count()['scheduled']} after one was cancelled")

        with reminders.consumer() as consumer:
            (d,) = consumer.receive(wait="10s")
            d.ack()
            print(f"due: {d.text}")


if __name__ == "__main__":
    main()
