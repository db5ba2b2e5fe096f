"""A trace is the same wherever its facts lie: in the journal, in files, or some here and some there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import Message, encode
from headrace.calls import BY_KEY
from headrace.log import cold
from unit.log.harness import DAY, SECOND, SealedWorld


def story(world: SealedWorld, message_id: int) -> list[tuple[Any, ...]]:
    """The events without what sealing itself adds."""
    events = world.call("trace", id=message_id)["events"]
    names = ("event", "group", "consumer", "attempt", "reason", "error", "until_ns", "attempts", "at_ns")
    return [tuple(event.get(name) for name in names) for event in events if event["event"] != "SEALED"]


def live_through(world: SealedWorld, seed: int, *, sealing: bool) -> dict[int, list[tuple[Any, ...]]]:
    """A random life of some messages in two groups; their traces in the end."""
    rng = random.Random(seed)
    world.call("topic.create", topic="orders", settings={"retry.max_retries": 2, "retry.initial_backoff": "2s"})
    world.call("group.create", topic="orders", group="other")
    ids: list[int] = []
    for _ in range(25):
        now_ns = world.now_ns
        ids += world.publish(
            "orders",
            [
                Message(
                    b"%d" % len(ids),
                    key=rng.choice((None, b"a", b"b")),
                    deliver_at_ns=now_ns + 3 * SECOND if rng.random() < 0.3 else None,
                    expires_at_ns=now_ns + rng.randrange(20, 60) * SECOND if rng.random() < 0.2 else None,
                )
                for _ in range(rng.randrange(1, 4))
            ],
        )
        for group in ("default", "other"):
            leased = world.lease("orders", rng.randrange(1, 4), group=group, consumer=rng.choice(("w1", "w2")))
            verb = rng.choice(("ack", "nack", "nack now", "reject", "release", "extend", ""))
            if verb and leased:
                world.settle("orders", leased, verb, group=group)
        if rng.random() < 0.2:
            world.call("schedule.cancel", topic="orders", ids=[rng.choice(ids)])
        if rng.random() < 0.2:
            world.call("schedule.move", topic="orders", ids=[rng.choice(ids)], delay_ns=SECOND)
        if rng.random() < 0.1:
            world.call("dlq.redrive", topic="orders")
        if rng.random() < 0.05:
            world.call("group.seek", topic="orders", group="other", start="earliest")
        if rng.random() < 0.05:
            world.call("topic.purge", topic="orders", group="other")
        world.wait(rng.choice((0.5, 1, 4, 31)))
        if sealing:
            world.seal()
    return {message_id: story(world, message_id) for message_id in ids}


@pytest.mark.feature("F130", "F132", "F133")
@pytest.mark.parametrize("seed", range(6))
def test_live_and_sealed_messages_tell_the_same(data_dir: Path, seed: int) -> None:
    worlds = [SealedWorld(data_dir / str(sealing)) for sealing in (False, True)]
    live, sealed = (
        live_through(world, seed, sealing=sealing) for world, sealing in zip(worlds, (False, True), strict=True)
    )
    assert live == sealed
    told = {event for events in live.values() for event, *_ in events}
    assert {"PUBLISHED", "DELIVERED", "REDELIVERED", "ACKED"} <= told
    worlds[0].seal()  # and everything at once in the end
    assert {message_id: story(worlds[0], message_id) for message_id in live} == live
    for world in worlds:
        world.close()


@pytest.mark.feature("F131", "F140")
def test_an_id_of_months_ago_is_found_by_what_the_files_say_of_themselves(
    world: SealedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ninety days of files one of messages and few of events are opened, and of those the row groups that match."""
    world.call("topic.create", topic="orders", settings={"retention": "400d", "partitions": 4})
    ids = []
    for day in range(90):
        for partition in range(4):
            ids += world.publish("orders", [b"%d" % day] * 3, partition=partition)
        world.settle("orders", world.lease("orders", 100, consumer=f"w{day}"), "ack")
        world.wait(DAY)
        if day % 10 == 9:
            world.seal()
    opened: list[str] = []
    real = cold.ColdLog.open

    def noting(self: cold.ColdLog, path: str, store: Any = None) -> Any:
        opened.append(path)
        return real(self, path, store)

    monkeypatch.setattr(cold.ColdLog, "open", noting)
    manifest = world.core.manifest
    assert len(list(manifest.live_segments())) >= 90
    for number in (0, 5 * 12 + 7, 80 * 12 + 11):
        opened.clear()
        told = world.call("trace", id=ids[number])
        assert told["events"][0]["event"] == "PUBLISHED"
        assert f"w{number // 12}" in {event.get("consumer") for event in told["events"]}
        assert len({path for path in opened if path.startswith("messages/")}) <= 4  # one a partition at the most
        assert len({path for path in opened if path.startswith("events/")}) <= 4


def test_a_published_event_names_its_producer(world: SealedWorld) -> None:
    batch = encode([Message(b"a")], producer_id=0xBEEF, producer_seq=1)
    [part] = world.port.publish("default", "orders", BY_KEY, batch)
    for _ in range(2):
        assert world.call("trace", id=part.base_id)["events"][0]["producer"] == "000000000000beef"
        world.seal()


def test_files_are_looked_into_where_they_hold_nobody_up(world: SealedWorld) -> None:
    """What has to be read from the disk is handed out, not done in the shard's turn."""
    [one] = world.publish("orders", [b"a"])
    world.seal()
    from headrace.broker.portions import Portions

    for method in ("trace", "explain"):
        done = world.port.administration.call(method, {"id": one})
        assert isinstance(done.reply, Portions)
        assert done.reply.aside is not None
    [two] = world.publish("orders", [b"b"])
    world.journal.commit()
    for method in ("trace", "explain"):
        assert isinstance(world.port.administration.call(method, {"id": two}).reply, dict)
