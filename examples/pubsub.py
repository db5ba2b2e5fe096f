"""Publish and subscribe: every group sees every message. Run it: python examples/pubsub.py"""

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:
        news = hr.topic("news")
        with (
            news.consumer(group="mail", start="latest", durable=False) as mail,
            news.consumer(group="eu", filter={"headers": {"region": "eu"}}) as europe,
        ):
            news.publish("rain in Rome", headers={"region": "eu"})
            news.publish("sun in Sydney", headers={"region": "au"})
            for name, subscriber in (("mail", mail), ("eu", europe)):
                for d in subscriber.until_idle():
                    d.ack()
                    print(f"{name}: {d.text}")


if __name__ == "__main__":
    main()
