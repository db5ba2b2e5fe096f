"""One rule of the shard is broken at a time, and the ledger has to notice: a checker that never barks is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.delivery import facts as f
from headrace.delivery import publishing, topic
from headrace.delivery.backlog import Backlog
from headrace.delivery.due import DueTimes
from headrace.delivery.evolve import FOLD
from headrace.delivery.partition import Partition
from headrace.delivery.settings import Policy
from headrace.delivery.state import State
from headrace.delivery.throttle import Throttle
from headrace.shard.core import Core, Done
from sim.ledger import Violation
from sim.play import play

STEPS = 150
SEEDS = range(60)

Break = Callable[[pytest.MonkeyPatch], None]


def answers_leave_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    execute = Core.execute
    patch.setattr(Core, "execute", lambda self, *args: Done(execute(self, *args).reply, 0))


def an_ack_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def released(state: State, fact: f.Acked) -> None:
        FOLD[f.Released](
            state, f.Released(fact.gid, fact.pid, fact.lease_id, fact.first, fact.count, fact.bits, fact.at_ns)
        )

    patch.setitem(FOLD, f.Acked, released)


def what_is_leased_can_be_leased_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backlog, "take", lambda self, span, lane: None)


def keys_have_no_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Policy, "keyed", property(lambda self: False))


def a_retry_lets_the_next_of_its_key_pass(patch: pytest.MonkeyPatch) -> None:
    add_again = Backlog.add_again

    def free(self: Backlog, at_ms: int, offset: int, *, front: bool) -> None:
        key = self.keys.get(offset, 0)
        chain = self.chains.get(key)
        if key and chain is not None and not isinstance(chain, int) and len(chain) > 1:
            self._next_of_key(key, chain)
        add_again(self, at_ms, offset, front=front)

    patch.setattr(Backlog, "add_again", free)


def delays_end_a_millisecond_early(patch: pytest.MonkeyPatch) -> None:
    pop_due, next_due_ms = DueTimes.pop_due, DueTimes.next_due_ms

    def early(self: DueTimes) -> int | None:
        due_ms = next_due_ms(self)
        return None if due_ms is None else due_ms - 1

    def pop(self: DueTimes, now_ms: int, most: int) -> list[tuple[int, int]]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(DueTimes, "next_due_ms", next_due_ms)
            return pop_due(self, now_ms + 1, most)

    patch.setattr(DueTimes, "next_due_ms", early)
    patch.setattr(DueTimes, "pop_due", pop)


def attempts_stand_still(patch: pytest.MonkeyPatch) -> None:
    leased = FOLD[f.Leased]

    def keeps(state: State, fact: f.Leased) -> None:
        tries = state.groups[fact.gid].backlogs[fact.pid].tries
        before = {offset: tries[offset].attempts for offset in fact.span() if offset in tries}
        leased(state, fact)
        for offset, attempts in before.items():
            tries[offset].attempts = attempts

    patch.setitem(FOLD, f.Leased, keeps)


def one_attempt_more_than_allowed(patch: pytest.MonkeyPatch) -> None:
    policy_of = topic.policy_of

    def generous(*args: Any) -> Policy:
        policy = policy_of(*args)
        retry = msgspec.structs.replace(policy.retry, max_retries=policy.retry.max_retries + 1)
        return msgspec.structs.replace(policy, retry=retry)

    patch.setattr(topic, "policy_of", generous)


def dead_letters_are_not_written(patch: pytest.MonkeyPatch) -> None:
    contents = Core._contents
    patch.setattr(Core, "_contents", lambda self, places: {} if len(places) == 1 else contents(self, places))


def priorities_are_ignored(patch: pytest.MonkeyPatch) -> None:
    add_published = Backlog.add_published
    patch.setattr(
        Backlog,
        "add_published",
        lambda self, base, end, later, lanes: add_published(self, base, end, later, None),
    )


def duplicates_are_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic.Dedup, "find", lambda self, dedup_id, since_ns: None)


def a_producers_repetition_is_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publishing, "_repeated", lambda partition, batch: None)


def leases_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "leases_over", lambda self, now_ns: iter(()))
    patch.setattr(State, "watch", lambda self, lease: None)


def lifetimes_do_not_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "ends_at", lambda self, at_ms, offset: False)


def retention_looks_at_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backlog, "first_unsettled", lambda self: self.end)


def keys_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Throttle, "allows", lambda self, key, more, now_ns: True)


def filters_let_everything_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publishing, "filtered_by_groups", lambda topic, batch: [])


CANARIES: list[tuple[Break, str]] = [
    (answers_leave_before_they_are_durable, "confirmed and is lost|before it was durable"),
    (an_ack_is_forgotten, "was delivered and is acked|off by"),
    (what_is_leased_can_be_leased_again, "is leased until|off by"),
    (keys_have_no_order, "of its key"),
    (a_retry_lets_the_next_of_its_key_pass, "of its key"),
    (delays_end_a_millisecond_early, "before its time|before its backoff ended|early"),
    (attempts_stand_still, "as attempt"),
    (one_attempt_more_than_allowed, "left no dead letter"),
    (dead_letters_are_not_written, "left no dead letter"),
    (priorities_are_ignored, "of lane"),
    (duplicates_are_stored, "again: "),
    (a_producers_repetition_is_stored, "repeated"),
    (leases_never_end, "never reach a final state|which is ready"),
    (lifetimes_do_not_end, "after its lifetime|is expired"),
    (retention_looks_at_nobody, "retention took"),
    (filters_let_everything_through, "is filtered"),
    (keys_have_no_limit, "of a key in partition"),
]


@pytest.mark.parametrize(("rule", "barks"), CANARIES, ids=[rule.__name__ for rule, _ in CANARIES])
def test_a_broken_rule_is_noticed(rule: Break, barks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    with pytest.raises(Violation, match=barks):
        live_until(barks)


def live_until(barks: str) -> None:
    """One life after the other; a broken rule may be seen from another side first, so go on until it has its name."""
    seen: Violation | None = None
    for seed in SEEDS:
        try:
            play(seed, STEPS)
        except Violation as violation:
            seen = violation
            if re.search(barks, str(violation)):
                raise
    raise seen or AssertionError("nothing was noticed")
