"""One file of scenarios through every door: the same deliveries, the same answers, the same traces."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.doors import KINDS, OK, UNSAID, Entry, Taken, entry, told
from integration.mqtt_peer import cut_all
from integration.server_thread import ServerThread

FILE = Path(__file__).parents[1] / "corpus" / "doors" / "scenarios.txt"
_numbers = itertools.count()


class Step(NamedTuple):
    verb: str
    labels: list[str]
    said: dict[str, str]


def _read() -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    steps: list[Step] = []
    for line in FILE.read_text().splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "scenario":
            steps = found[" ".join(words[1:])] = []
            continue
        said = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        steps.append(Step(words[0], [word for word in words[1:] if "=" not in word], said))
    return found


SCENARIOS = _read()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    running = ServerThread(native_port=0, http_port=0, mqtt_port=0)
    yield running
    running.stop()


class Play:
    """One scenario through one door."""

    def __init__(self, door: Entry, client: Any) -> None:
        self.door = door
        self.client = client
        self.held: dict[str, Any] = {}
        self.answers: list[str] = []
        self.deliveries: list[Taken] = []

    async def run(self, steps: list[Step]) -> None:
        for step in steps:
            await getattr(self, f"_{step.verb}")(step)

    async def _settings(self, step: Step) -> None:
        await self.client.call("topic.create", topic=self.door.topic, settings=dict(step.said))

    async def _publish(self, step: Step) -> None:
        fields: dict[str, Any] = dict(step.said)
        if "header" in fields:
            name, _, value = fields.pop("header").partition(":")
            fields["headers"] = {name: value}
        if "dedup" in fields:
            fields["dedup_id"] = fields.pop("dedup")
        if "priority" in fields:
            fields["priority"] = int(fields["priority"])
        await self.door.publish(step.labels[0], fields)

    async def _take(self, step: Step) -> None:
        taken = await self.door.take()
        assert taken.value == step.labels[0]
        for name, said in step.said.items():
            if name == "header":
                if taken.headers is not None:
                    header, _, value = said.partition(":")
                    assert taken.headers.get(header) == value
            elif (told_it := getattr(taken, name)) is not None:
                assert str(told_it) == said, name
        self.held[taken.value] = taken.handle

    async def _settle(self, verb: str, step: Step) -> str:
        return await self.door.settle(self.held[step.labels[-1]], verb, dict(step.said))

    async def _agreed(self, verb: str, step: Step) -> None:
        assert await self._settle(verb, step) in (OK, UNSAID)

    async def _ack(self, step: Step) -> None:
        await self._agreed("ack", step)

    async def _nack(self, step: Step) -> None:
        await self._agreed("nack", step)

    async def _reject(self, step: Step) -> None:
        await self._agreed("reject", step)

    async def _release(self, step: Step) -> None:
        await self._agreed("release", step)

    async def _extend(self, step: Step) -> None:
        await self._agreed("extend", step)

    async def _late(self, step: Step) -> None:
        """The library refuses to settle one delivery twice by itself, so only that it is refused is compared."""
        answer = await self._settle(step.labels[0], step)
        self.answers.append(answer if answer in (OK, UNSAID) else "refused")

    async def _leave(self, _step: Step) -> None:
        await self.door.leave()

    async def _dead(self, step: Step) -> None:
        """In the order in which they died."""
        found = await self.client.call("dlq.list", topic=self.door.topic)
        rows = found["messages"] if isinstance(found, dict) else found
        assert [_text(row["value"]) for row in rows] == step.labels

    async def traces(self) -> list[Any]:
        """Of each message in the order of the log, without times and names of consumers."""
        found = []
        handle = await self.client.topic(self.door.topic)
        async for message in handle.read(from_offset=0):
            trace = await self.client.trace(message.id)
            events = [
                {
                    name: value
                    for name, value in event.items()
                    if name in ("event", "attempt", "attempts", "reason", "error")
                }
                for event in trace["events"]
            ]
            states = [(group["group"], group["state"], group["attempts"]) for group in trace["groups"]]
            found.append((message.offset, trace["key"], trace["headers"], trace["priority"], events, sorted(states)))
        return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.feature("N10", "F255")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_door_tells_the_same_story(name: str, server: ServerThread) -> None:
    stories: dict[str, Any] = {}
    for kind in KINDS:
        client = await told(kind, server.url)
        topic = f"story-{next(_numbers)}"
        await client.topic(topic) if not any(step.verb == "settings" for step in SCENARIOS[name]) else None
        door = entry(kind, topic, client, server.server.addresses)
        play = Play(door, client)
        try:
            await play.run(SCENARIOS[name])
            stories[kind] = (play.answers, await play.traces())
        except Exception as error:
            raise AssertionError(f"{kind}: {error!r}") from error
        finally:
            await door.close()
            await client.close()
            await cut_all()
    expected_answers, expected = stories["embedded"]
    assert any(trace[4] for trace in expected)
    for kind, (answers, traces) in stories.items():
        assert traces == expected, kind
        assert answers in (expected_answers, [UNSAID] * len(expected_answers)), kind


def test_the_scenarios_use_every_verb() -> None:
    used = {step.verb for steps in SCENARIOS.values() for step in steps}
    assert used >= {"publish", "take", "ack", "nack", "reject", "release", "extend", "late", "leave", "dead"}
