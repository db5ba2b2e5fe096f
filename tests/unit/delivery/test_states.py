"""The table of states and events, pair by pair: the shard does what it says, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from headrace.batch import Message
from headrace.delivery import FINAL, TRANSITIONS, Event, Receipts, SettleMany, State, mermaid, next_state
from unit.delivery.harness import HOUR, MINUTE, Stage, retry

PAGE = Path(__file__).parents[3] / "docs/internals/delivery.md"
STALE = Receipts(1, 4711, 0)
LIFE = HOUR
LEASE = 50 * MINUTE
DELAY = 30 * MINUTE


def published(stage: Stage, message: Message | None = None) -> Receipts:
    stage.topic(lease_ns=LEASE)
    stage.publish(message or Message(b"m", ttl_ns=LIFE))
    return STALE


def scheduled(stage: Stage) -> Receipts:
    stage.topic(lease_ns=LEASE)
    stage.publish(Message(b"m", delay_ns=DELAY, expires_at_ns=stage.now_ns + LIFE))
    return STALE


def leased(stage: Stage) -> Receipts:
    published(stage)
    (delivery,) = stage.lease()
    return delivery.receipt


def acked(stage: Stage) -> Receipts:
    receipts = leased(stage)
    stage.settle(ack=[receipts])
    return receipts


def dead(stage: Stage) -> Receipts:
    receipts = leased(stage)
    stage.settle(reject=[(receipts, "")])
    return receipts


def expired(stage: Stage) -> Receipts:
    published(stage)
    stage.advance(LIFE)
    return STALE


def cancelled(stage: Stage) -> Receipts:
    scheduled(stage)
    stage.cancel(0)
    return STALE


def dropped(stage: Stage) -> Receipts:
    published(stage)
    stage.purge()
    return STALE


def filtered(stage: Stage) -> Receipts:
    stage.topic(lease_ns=LEASE)
    stage.change_group(filter={"headers": {"wanted": {"exists": True}}})
    stage.publish(Message(b"m", ttl_ns=LIFE))
    return STALE


IN_STATE: dict[State, Callable[[Stage], Receipts]] = {
    State.SCHEDULED: scheduled,
    State.READY: published,
    State.LEASED: leased,
    State.ACKED: acked,
    State.DEAD: dead,
    State.EXPIRED: expired,
    State.CANCELLED: cancelled,
    State.DROPPED: dropped,
    State.FILTERED: filtered,
}

HAPPENS: dict[Event, Callable[[Stage, Receipts], object]] = {
    Event.DUE: lambda stage, _: stage.advance(DELAY),
    Event.LEASE: lambda stage, _: stage.lease(10),
    Event.ACK: lambda stage, receipts: stage.settle(ack=[receipts]),
    Event.RETRY_LATER: lambda stage, receipts: stage.settle(nack=[(receipts, MINUTE, "")]),
    Event.RETRY_NOW: lambda stage, receipts: stage.settle(nack=[(receipts, 0, "")]),
    Event.RELEASE: lambda stage, receipts: stage.settle(release=[receipts]),
    Event.EXTEND: lambda stage, receipts: stage.settle(extend=[(receipts, HOUR)]),
    Event.DIE: lambda stage, receipts: stage.settle(reject=[(receipts, "")]),
    Event.EXPIRE: lambda stage, _: stage.advance(LIFE),
    Event.CANCEL: lambda stage, _: stage.cancel(0),
    Event.MOVE: lambda stage, _: stage.move(0, due_ns=stage.now_ns + MINUTE),
    Event.DROP: lambda stage, _: stage.purge(),
}

OTHERWISE = {(State.READY, Event.DIE), (State.LEASED, Event.DROP)}
"""Pairs that come about by something that happens to another message; below."""


def test_every_state_has_a_row_and_final_ones_an_empty_one() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {state for state, row in TRANSITIONS.items() if not row} == FINAL
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


@pytest.mark.feature("F045", "F046")
@pytest.mark.parametrize(("state", "event"), [pair for pair in product(State, Event) if pair not in OTHERWISE], ids=str)
def test_what_the_table_says_happens_and_what_it_does_not_say_changes_nothing(
    stage: Stage, state: State, event: Event
) -> None:
    receipts = IN_STATE[state](stage)
    assert stage.state_of(0) == state
    HAPPENS[event](stage, receipts)
    assert stage.state_of(0) == (next_state(state, event) or state)


def test_a_ready_message_dies_behind_one_of_its_key(stage: Stage) -> None:
    stage.topic(on_dead="follow")
    stage.publish("A1", "A2")
    first = stage.take("A1")
    assert stage.state_of(1) == State.READY
    stage.reject(first)
    assert stage.state_of(1) == next_state(State.READY, Event.DIE) == State.DEAD


def test_a_leased_dead_letter_is_dropped_when_it_is_redriven(stage: Stage) -> None:
    stage.topic(retry=retry(max_retries=0))
    stage.publish("a")
    stage.nack(*stage.lease())
    (held,) = stage.lease(topic="dlq/t")
    stage.redrive(0, topic="dlq/t")
    stage.last = stage.named("dlq/t")
    assert stage.state_of(0) == next_state(State.LEASED, Event.DROP) == State.DROPPED
    (refused,) = stage.do(SettleMany(stage.the_group().gid, ack=[held.receipt])).refused
    assert refused[1].code == "lease_lost"


@pytest.mark.feature("F045")
def test_the_page_shows_the_diagram_that_the_table_makes() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in PAGE.read_text()


def test_the_diagram_has_every_arrow_of_the_table() -> None:
    lines = mermaid().splitlines()
    arrows = {(state, event, target) for state, row in TRANSITIONS.items() for event, target in row.items()}
    assert {f"    {state} --> {target}: {event}" for state, event, target in arrows} <= set(lines)
    assert len([line for line in lines if line.endswith("--> [*]")]) == len(FINAL)
