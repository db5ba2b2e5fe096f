"""A topic that has a life: acks, retries, deaths of two kinds; and the books of what happened to it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from uuid import uuid4

import headrace

SETTINGS = {"partitions": 2, "retry.max_retries": 1, "retry.initial_backoff": "20ms"}


class Life:
    """Publishes orders and works on them: those that end with 3 are rejected, those with 7 fail each time."""

    def __init__(self, world: Any, name: str = "orders", **settings: Any) -> None:
        self.world = world
        self.name = f"{name}-{uuid4().hex[:8]}"
        world.call("topic.create", topic=self.name, settings={**SETTINGS, **settings})
        self.books: Counter[str] = Counter()

    def publish(self, count: int, first: int = 0, **more: Any) -> None:
        with headrace.connect(self.world.url) as hr:
            topic = hr.topic(self.name)
            for number in range(first, first + count):
                value = json.dumps({"order": number, "sum": number * 10}).encode()
                topic.publish(value, key=f"user-{number % 5}", headers={"shop": "north"}, **more)
        self.books["published"] += count

    def drain(self, consumer: str = "anna", most: int | None = None) -> None:
        """Work until all is acked or dead, or so many were handled."""
        books = self.books
        left = most
        with (
            headrace.connect(self.world.url) as hr,
            hr.topic(self.name).consumer(name=consumer, prefetch=10) as mine,
        ):
            while books["acked"] + books["died"] < books["published"] and left != 0:
                for d in mine.receive(10 if left is None else min(10, left), wait="5s"):
                    self._handle(d)
                    left = None if left is None else left - 1

    def _handle(self, d: Any) -> None:
        number = json.loads(d.value)["order"]
        if number % 10 == 3:
            self.books["died"] += 1
            d.reject(error=f"order {number}: card refused")
        elif number % 10 == 7:
            self.books["retried" if d.attempt == 1 else "died"] += 1
            d.nack(error=f"timeout after {number * 3} ms")
        else:
            self.books["acked"] += 1
            d.ack()
