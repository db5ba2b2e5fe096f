"""A whole group against a model that keeps one small record a message and looks at all of them for every answer.

The model knows one partition, a group, keys, priorities, delays, retries and lifetimes by the words of the documented
semantics. After each step: every message is where the model has it, the books balance, a lease gives what the model
gives in that order. Snapshots are taken and restored in between, and the shard is rebuilt from its journal; nobody may
notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from headrace import delivery as d
from headrace.batch import Message, encode
from headrace.clock import ManualClock
from headrace.config import RetryConfig, TopicConfig
from headrace.delivery import books_of, restore, snapshot
from headrace.journal import MemoryJournal
from headrace.shard import Core

MS = 1_000_000
STEP = 8 * MS
"""Leases end up to eight milliseconds late: the play moves in such steps and sets deadlines between them.

So do delays and backoffs: of a message that comes due in the very millisecond in which one of its key is appended,
either may be the first.
"""
TTL = 60 * STEP
LEASE = 10 * STEP - 4 * MS
BACKOFF = 3 * STEP - 4 * MS
MAX_RETRIES = 2
FINAL = {"acked", "dead", "expired", "cancelled", "dropped"}


@dataclass
class Entry:
    offset: int
    key: bytes | None
    priority: int
    state: str
    at_ms: int  # its place in the order: when it was appended, or became due
    late: bool
    ends_ns: int
    due_ns: int = 0
    fails: int = 0
    attempt: int = 0
    lease: int = 0
    deadline_ns: int = 0

    @property
    def rank(self) -> tuple[int, bool, int]:
        return self.at_ms, self.late, self.offset


@dataclass
class Model:
    ordering: str
    on_dead: str
    now_ns: int
    entries: list[Entry] = field(default_factory=list)
    held: set[bytes] = field(default_factory=set)
    failed: int = 0

    def publish(self, messages: list[tuple[bytes | None, int, int, bool]]) -> None:
        for key, priority, delay_ns, short in messages:
            begins_ns = self.now_ns + delay_ns if delay_ns else self.now_ns
            ends_ns = begins_ns + (5 * STEP if short else TTL)
            state = "delayed" if delay_ns else "ready"
            entry = Entry(len(self.entries), key, priority, state, self.now_ns // MS, False, ends_ns)
            entry.due_ns = self.now_ns + delay_ns
            self.entries.append(entry)

    def pass_time(self) -> None:
        """In the order in which a shard does it: leases that are over, then lifetimes, then delays and backoffs."""
        over = [e for e in self.entries if e.state == "leased" and e.deadline_ns <= self.now_ns]
        for entry in sorted(over, key=lambda e: (e.deadline_ns, e.lease, e.offset)):
            self.fail(entry, None)
        for entry in sorted(self.entries, key=lambda e: (e.due_ns, e.offset)):
            if (entry.state == "delayed" and entry.due_ns <= self.now_ns) or (
                entry.state == "waiting" and entry.due_ns <= self.now_ns
            ):
                entry.state, entry.at_ms, entry.late = "ready", entry.due_ns // MS, True
        for entry in self.entries:
            if entry.state in ("ready", "waiting") and entry.ends_ns <= self.now_ns:
                entry.state = "expired"

    def fail(self, entry: Entry, delay_ns: int | None) -> None:
        entry.fails += 1
        self.failed += 1
        if entry.ends_ns <= self.now_ns:
            entry.state = "expired"
        elif entry.fails > MAX_RETRIES:
            self.die(entry)
        else:
            wait_ns = BACKOFF if delay_ns is None else delay_ns
            if wait_ns:
                entry.state, entry.due_ns = "waiting", self.now_ns + wait_ns
            else:
                entry.state, entry.at_ms, entry.late = "ready", self.now_ns // MS, True

    def die(self, entry: Entry) -> None:
        entry.state = "dead"
        if self.ordering != "key" or entry.key is None:
            return
        if self.on_dead == "hold":
            self.held.add(entry.key)
        elif self.on_dead == "follow":
            for other in self.entries:
                if other.state == "ready" and other.key == entry.key and other.ends_ns > self.now_ns:
                    other.state = "dead"

    def heads(self) -> list[Entry]:
        """Whoever may be handed out, in order. By key: the first of its key, and one that failed stays the first."""
        ready = sorted((e for e in self.entries if e.state == "ready"), key=lambda e: e.rank)
        if self.ordering == "key":
            held = {e.key for e in self.entries if e.key and e.state in ("leased", "waiting")} | self.held
            failed = {e.key: e for e in ready if e.key and e.fails}
            free, seen = [], set(held)
            for entry in ready:
                if entry.key is None:
                    free.append(entry)
                elif entry.key not in seen and failed.get(entry.key, entry) is entry:
                    seen.add(entry.key)
                    free.append(entry)
            ready = free
        return sorted(ready, key=lambda e: (e.priority, e.rank))


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from((None, b"a", b"b", b"c")),
        st.sampled_from((5, 5, 5, 0, 9)),
        st.sampled_from((0, 0, 0, STEP - 4 * MS, 4 * STEP - 4 * MS)),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


class GroupPlay(RuleBasedStateMachine):
    """See the head of the file."""

    @initialize(
        ordering=st.sampled_from(("none", "key", "key", "key")), on_dead=st.sampled_from(("continue", "hold", "follow"))
    )
    def begin(self, ordering: str, on_dead: str) -> None:
        self.clock = ManualClock(1_800_000_000 * 1_000 * MS)
        self.journal = MemoryJournal()
        self.core = Core(self.journal, self.clock)
        retry = RetryConfig(
            max_retries=MAX_RETRIES, initial_backoff_ns=BACKOFF, backoff_multiplier=1.0, total_timeout_ns=0
        )
        settings = {"ordering": ordering, "on_dead": on_dead, "message_ttl_ns": TTL, "lease_ns": LEASE, "retry": retry}
        config = TopicConfig(**settings, dead_letters=False)
        self.do(d.CreateTopic("default", "t", config))
        self.model = Model(ordering, on_dead, self.core.clock.now_ns())

    def do(self, command: Any) -> Any:
        return self.core.execute(command).reply

    @property
    def backlog(self) -> d.Backlog:
        return self.core.state.groups[1].backlogs[1]

    # -- what can happen ---------------------------------------------------------------------------------------------

    @rule(messages=MESSAGES)
    def publish(self, messages: list[tuple[bytes | None, int, int, bool]]) -> None:
        sent = [
            Message(b"", key=key, priority=priority, delay_ns=delay or None, ttl_ns=5 * STEP if short else None)
            for key, priority, delay, short in messages
        ]
        self.do(d.Publish(1, encode(sent)))
        self.model.publish(messages)

    @rule(most=st.integers(1, 5))
    def lease(self, most: int) -> None:
        expected = self.model.heads()[:most]
        grants = self.do(d.LeaseUpTo(1, "c", most))
        given_out = [(grant, offset) for grant in grants for offset in grant.offsets()]
        assert [offset for _, offset in given_out] == [entry.offset for entry in expected]
        for (grant, offset), entry in zip(given_out, expected, strict=True):
            entry.attempt = entry.fails + 1
            assert grant.attempts.get(offset, 1) == entry.attempt
            entry.state, entry.lease, entry.deadline_ns = "leased", grant.lease_id, self.model.now_ns + LEASE

    def leased(self) -> list[Entry]:
        return [entry for entry in self.model.entries if entry.state == "leased"] if hasattr(self, "model") else []

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), verb=st.sampled_from(("ack", "nack", "nack now", "reject", "release")))
    def settle(self, data: st.DataObject, verb: str) -> None:
        entry = data.draw(st.sampled_from(self.leased()))
        receipts = d.Receipts(1, entry.lease, entry.offset)
        model = self.model
        if verb == "ack":
            command = d.SettleMany(1, ack=[receipts])
            entry.state = "acked"
        elif verb == "reject":
            command = d.SettleMany(1, reject=[(receipts, "")])
            model.die(entry)
        elif verb == "release":
            command = d.SettleMany(1, release=[receipts])
            entry.state = "expired" if entry.ends_ns <= model.now_ns else "ready"
        else:
            delay_ns = 0 if verb == "nack now" else None
            command = d.SettleMany(1, nack=[(receipts, delay_ns, "")])
            model.fail(entry, delay_ns)
        reply = self.do(command)
        assert (reply.settled, list(reply.refused)) == (1, [])

    @precondition(lambda self: hasattr(self, "model") and len(self.leased()) < len(self.model.entries))
    @rule(data=st.data())
    def settle_what_is_not_leased(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([e for e in self.model.entries if e.state != "leased"]))
        reply = self.do(d.SettleMany(1, ack=[d.Receipts(1, entry.lease or 999, entry.offset)]))
        assert reply.settled == (entry.state == "acked")

    @precondition(lambda self: hasattr(self, "model") and self.model.entries)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model.entries))
        assert self.do(d.Cancel(1, d.Span(entry.offset, 1))) == (entry.state == "delayed")
        if entry.state == "delayed":
            entry.state = "cancelled"

    @rule(key=st.sampled_from((b"a", b"b", b"c")))
    def free_a_key(self, key: bytes) -> None:
        assert self.do(d.FreeKey(1, 1, xxh3_64_intdigest(key))) == (key in self.model.held)
        self.model.held.discard(key)

    @rule()
    def purge(self) -> None:
        waiting = [e for e in self.model.entries if e.state in ("ready", "waiting", "delayed")]
        assert self.do(d.Purge(1)) == len(waiting)
        for entry in waiting:
            entry.state = "dropped"

    @rule(steps=st.sampled_from((1, 1, 2, 3)))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(STEP)
            self.model.now_ns += STEP
            for _ in range(100):
                wake_ns = self.core.tick()
                if wake_ns is None or wake_ns > self.core.clock.now_ns():
                    break
            self.model.pass_time()

    @rule(with_snapshot=st.booleans())
    def restart(self, with_snapshot: bool) -> None:
        self.journal.commit()
        if with_snapshot:
            self.journal.save_snapshot(*self.core.take_snapshot())
        self.core = Core(self.journal, self.clock)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "model"):
            return
        backlog, partition = self.backlog, self.core.state.partitions[1]
        leased = backlog.leased_bits()
        for entry in self.model.entries:
            offset = entry.offset
            found = {
                "delayed": offset in partition.scheduled,
                "waiting": offset in backlog.waiting,
                "ready": backlog.is_ready(offset),
                "leased": offset in leased,
                "dead": offset in backlog.dead,
                "expired": offset in backlog.expired,
                "cancelled": offset in backlog.cancelled,
                "dropped": offset in backlog.dropped,
            }
            where = [name for name, here in found.items() if here] or ["acked" if offset in backlog.done else "lost"]
            assert where == [entry.state], f"message {offset}: {where}, the model has {entry.state}"

    @invariant()
    def the_books_balance(self) -> None:
        if hasattr(self, "model"):
            books, faults = books_of(self.backlog)
            assert faults == []
            assert books.drift == self.backlog.drift() == 0

    @invariant()
    def every_attempt_that_failed_is_counted(self) -> None:
        if hasattr(self, "model"):
            assert self.core.state.groups[1].nacked == self.model.failed

    @invariant()
    def the_snapshot_law_holds(self) -> None:
        if hasattr(self, "model"):
            taken = snapshot(self.core.state)
            assert snapshot(restore(taken)) == taken


GroupPlay.TestCase.settings = settings(stateful_step_count=40, max_examples=min(1_000, settings().max_examples))
TestGroupPlay = GroupPlay.TestCase


@given(st.lists(st.sampled_from((b"a", b"b", b"c", None)), min_size=1, max_size=40), st.integers(1, 9), st.booleans())
def test_of_a_key_one_at_a_time_and_in_order_however_it_is_leased(
    keys: list[bytes | None], most: int, restarts: bool
) -> None:
    clock, journal = ManualClock(), MemoryJournal()
    core = Core(journal, clock)
    core.execute(d.CreateTopic("default", "t", TopicConfig()))
    core.execute(d.Publish(1, encode([Message(b"", key=key) for key in keys])))
    done: list[int] = []
    while grants := core.execute(d.LeaseUpTo(1, "c", most)).reply:
        given_out = [(grant, offset) for grant in grants for offset in grant.offsets()]
        named = [keys[offset] for _, offset in given_out if keys[offset] is not None]
        assert len(named) == len(set(named)), "two of one key at a time"
        for grant, offset in given_out:
            core.execute(d.SettleMany(1, ack=[d.Receipts(1, grant.lease_id, offset)]))
        done += [offset for _, offset in given_out]
        if restarts:
            journal.commit()
            core = Core(journal, clock)
    assert sorted(done) == list(range(len(keys)))
    for key in set(keys) - {None}:
        mine = [offset for offset in done if keys[offset] == key]
        assert mine == sorted(mine)
