"""A question over a topic, and its answer. Run it: python examples/request_reply.py"""

import headrace


def main() -> None:
    with headrace.open(":memory:") as hr:

        @hr.worker("auth/validate", group="auth")
        def validate(d: headrace.Delivery) -> str:
            return "yes" if d.text == "user-1" else "no"  # what it returns is the answer

        with hr.start_workers():
            for user in ("user-1", "user-2"):
                answer = hr.request("auth/validate", user, timeout="10s")
                print(f"{user}: {answer.text}")
        try:
            hr.request("auth/validate", "user-1", timeout="50ms")
        except headrace.TimedOut as error:
            print(error)


if __name__ == "__main__":
    main()
