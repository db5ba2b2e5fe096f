"""Deciding what becomes of leased messages: ack, nack, reject, release, extend, and all of them in one record.

A receipt is good as long as its lease holds the message. A stale one is refused with ``LeaseLost`` and changes nothing;
acking what this group has acked already is fine. Where the record also publishes or cancels, one bad receipt refuses
all of it: half a transaction is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from pyroaring import BitMap64

from headrace.batch import Batch
from headrace.delivery import facts as f
from headrace.delivery.backlog import Backlog, Lease
from headrace.delivery.commands import Death, Outcome, PublishDone, Receipts, SettleDone, SettleMany, refuse
from headrace.delivery.offsets import EMPTY, Span, add, inside, span_of
from headrace.delivery.partition import Partition
from headrace.delivery.publishing import Beside, accept
from headrace.delivery.settings import backoff_ns
from headrace.delivery.state import MS_NS, State
from headrace.delivery.topic import Group
from headrace.errors import HeadraceError, InvalidArgument, LeaseLost, LimitExceeded, UnknownGroup, UnknownTopic
from headrace.limits import ERROR_TEXT_CHARS_MAX, LEASE_MESSAGES_MAX, SETTLE_ENTRIES_MAX

__all__ = ["decide_settle", "failed", "give_back", "outlived_expire"]

_ACKED_ONE = SettleDone(1, ())
_FOREVER = 10_000 * 24 * 3600 * 1_000_000_000


def decide_settle(state: State, command: SettleMany, now_ns: int) -> Outcome:
    group = state.groups.get(command.gid)
    if group is None:
        return refuse(UnknownGroup(f"group {command.gid} is not of this shard"))
    if len(command.ack) == 1 and not (
        command.nack or command.reject or command.release or command.extend or command.publish or command.cancel
    ):
        simple = _ack_one(state, group, command.ack[0], now_ns)
        if simple is not None:
            return simple
    wrong = _check_shape(command)
    if wrong is not None:
        return refuse(wrong)
    facts: list[f.Fact] = []
    deaths: list[Death] = []
    refused: list[tuple[Receipts, HeadraceError]] = []
    gid = group.gid
    settled = 0

    for receipts in command.ack:
        lease, span, rest = _held(state, group, receipts)
        if lease is not None:
            facts.append(f.Acked(gid, receipts.pid, receipts.lease_id, *span.packed(), now_ns))
        settled += span.count
        if rest.count:
            before = _acked_before(group, receipts.pid, rest)
            settled += before.count
            if before.count < rest.count:
                _refuse_rest(state, receipts, span_of(rest.bitmap() - before.bitmap()), refused)
    for receipts, delay_ns, error in command.nack:
        lease, span, rest = _held(state, group, receipts)
        if lease is not None:
            failed(lease, span, now_ns, "nack", error[:ERROR_TEXT_CHARS_MAX], delay_ns, facts, deaths)
        settled += span.count
        _refuse_rest(state, receipts, rest, refused)
    for receipts, error in command.reject:
        lease, span, rest = _held(state, group, receipts)
        text = error[:ERROR_TEXT_CHARS_MAX]
        deaths += [Death(gid, receipts.pid, receipts.lease_id, offset, "rejected", text) for offset in span]
        settled += span.count
        _refuse_rest(state, receipts, rest, refused)
    for receipts in command.release:
        lease, span, rest = _held(state, group, receipts)
        if lease is not None:
            give_back(lease, span, now_ns, "released", facts)
        settled += span.count
        _refuse_rest(state, receipts, rest, refused)
    for receipts, by_ns in command.extend:
        lease, span, rest = _held(state, group, receipts)
        if lease is not None:
            until_ns = now_ns + min(by_ns, group.policy.max_lease_ns)
            facts.append(f.Extended(gid, receipts.pid, receipts.lease_id, *span.packed(), now_ns, until_ns))
        settled += span.count
        _refuse_rest(state, receipts, rest, refused)
    if not (command.publish or command.cancel):
        if group.policy.fifo:
            facts = _without_overlap(facts, deaths)
        return Outcome(outlived_expire(state, facts, now_ns), SettleDone(settled, refused), deaths=deaths)
    if refused:
        return refuse(refused[0][1])
    return _with_outputs(state, command, group, facts, deaths, settled, now_ns)


def _ack_one(state: State, group: Group, receipts: Receipts, now_ns: int) -> Outcome | None:
    """One run to ack and nothing else, all of it held: what nearly every call is. None where it is not so."""
    pid, lease_id, first, count = receipts.pid, receipts.lease_id, receipts.first, receipts.count
    lease = state.leases.get(lease_id)
    if (
        lease is None
        or count < 1
        or receipts.bits is not None
        or lease.backlog.group is not group
        or lease.backlog.partition.pid != pid
    ):
        return None
    if lease.bits is None:
        if first < lease.first or first + count > lease.first + lease.count:
            return None
    elif not inside(lease.bits, Span(first, count)):
        return None
    return Outcome(
        [f.Acked(group.gid, pid, lease_id, first, count, b"", now_ns)],
        _ACKED_ONE if count == 1 else SettleDone(count, ()),
    )


def _check_shape(command: SettleMany) -> HeadraceError | None:
    entries = [
        *command.ack,
        *(entry[0] for entry in command.nack),
        *(entry[0] for entry in command.reject),
        *command.release,
        *(entry[0] for entry in command.extend),
    ]
    if len(entries) > SETTLE_ENTRIES_MAX:
        return LimitExceeded(f"{len(entries)} receipt runs in one settle: at most {SETTLE_ENTRIES_MAX}")
    seen: dict[tuple[int, int], BitMap64] = {}
    for receipts in entries:
        first, count = receipts.first, receipts.count
        if not 0 < count <= LEASE_MESSAGES_MAX or not 0 <= first < 1 << 62:
            return InvalidArgument(
                f"receipts for {count} messages from offset {first}: from 1 to {LEASE_MESSAGES_MAX} messages, from 0 up"
            )
        if receipts.bits is not None and (receipts.bits.min() != first or len(receipts.bits) != count):
            return InvalidArgument(f"receipts for {count} messages from {first}: their bitmap says otherwise")
        taken = seen.get((receipts.pid, receipts.lease_id))
        if taken is None:
            seen[receipts.pid, receipts.lease_id] = receipts.span().bitmap()
            continue
        twice = taken & receipts.span().bitmap()
        if twice:
            return InvalidArgument(
                f"message {twice.min()} of lease {receipts.lease_id} is settled twice in one call: name it once"
            )
        add(taken, receipts.span())
    for _, delay_ns, _ in command.nack:
        if delay_ns is not None and not 0 <= delay_ns <= _FOREVER:
            return InvalidArgument(f"a nack with a delay of {delay_ns / 1e9}s: from 0s up")
    for _, by_ns in command.extend:
        if by_ns <= 0:
            return InvalidArgument(f"extend by {by_ns / 1e9}s: must be over 0s")
    return None


def _held(state: State, group: Group, receipts: Receipts) -> tuple[Lease | None, Span, Span]:
    """The lease, what it holds of these messages, and what it does not."""
    span = receipts.span()
    lease = state.leases.get(receipts.lease_id)
    if lease is None or lease.backlog.group is not group or lease.backlog.partition.pid != receipts.pid:
        return None, EMPTY, span
    if lease.holds(span):
        return lease, span, EMPTY
    wanted = span.bitmap()
    held = wanted & lease.span().bitmap()
    return (lease if held else None), span_of(held), span_of(wanted - held)


def _acked_before(group: Group, pid: int, span: Span) -> Span:
    """Those that this group has acked already."""
    backlog = group.backlogs.get(pid)
    if backlog is None:
        return EMPTY
    acked = span.bitmap() & backlog.done
    for others in (backlog.dead, backlog.expired, backlog.cancelled, backlog.dropped, backlog.filtered):
        if others:
            acked -= others
    return span_of(acked)


def _refuse_rest(state: State, receipts: Receipts, rest: Span, refused: list[tuple[Receipts, HeadraceError]]) -> None:
    if not rest.count:
        return
    partition = state.partitions.get(receipts.pid)
    where = f"partition {partition.index} of topic {partition.topic.name!r}" if partition is not None else "its topic"
    more = f" (and {rest.count - 1} more)" if rest.count > 1 else ""
    error = LeaseLost(
        f"the lease of the message at offset {rest.first}{more} in {where} is over: its time ran out, the message "
        "was settled or given back, or it is not this group's"
    )
    refused.append((Receipts(receipts.pid, receipts.lease_id, rest.first, rest.count, rest.bits), error))


# -- failing -----------------------------------------------------------------------------------------------------------


def failed(
    lease: Lease,
    span: Span,
    now_ns: int,
    reason: str,
    error: str,
    delay_ns: int | None,
    facts: list[f.Fact],
    deaths: list[Death],
) -> None:
    """An attempt at each of these messages failed: it expires, dies, or comes back (now, or after its backoff)."""
    backlog = lease.backlog
    group, partition = backlog.group, backlog.partition
    retry = group.policy.retry
    expired: list[int] = []
    dying: list[tuple[int, str]] = []
    by_due: dict[int, list[int]] = {}
    tries = backlog.tries
    for offset in span:
        known = tries.get(offset)
        attempts = 1 if known is None else known.attempts
        first_ns = lease.at_ns if known is None else known.first_ns
        if partition.lifetime_over(offset, now_ns):
            expired.append(offset)
        elif attempts > retry.max_retries:
            dying.append((offset, "max_retries"))
        elif retry.total_timeout_ns and now_ns - first_ns >= retry.total_timeout_ns:
            dying.append((offset, "total_timeout"))
        else:
            wait_ns = backoff_ns(retry, attempts, offset) if delay_ns is None else delay_ns
            by_due.setdefault(-(-(now_ns + wait_ns) // MS_NS) if wait_ns else 0, []).append(offset)
    gid, pid, lease_id = group.gid, partition.pid, lease.lease_id
    if expired:
        facts.append(f.Expired(gid, pid, lease_id, *span_of(expired).packed(), now_ns, reason))
    for due_ms, offsets in sorted(by_due.items()):
        facts.append(f.Retried(gid, pid, lease_id, *span_of(offsets).packed(), now_ns, due_ms, reason, error))
    deaths.extend(Death(gid, pid, lease_id, offset, why, error, reason) for offset, why in dying)
    if by_due and group.policy.fifo:
        facts.extend(_behind(backlog, chain.from_iterable(by_due.values()), span, now_ns))


def give_back(lease: Lease, span: Span, now_ns: int, reason: str, facts: list[f.Fact]) -> None:
    """Back to ready, uncounted; where order is by partition, with everything that was handed out behind it."""
    backlog = lease.backlog
    gid, pid = backlog.group.gid, backlog.partition.pid
    facts.append(f.Released(gid, pid, lease.lease_id, *span.packed(), now_ns, reason))
    if backlog.group.policy.fifo:
        facts.extend(_behind(backlog, span, span, now_ns))


def _behind(backlog: Backlog, back: Iterable[int], taken: Span, now_ns: int) -> Iterator[f.Released]:
    """Where order is by partition, what comes after a message that goes back goes back too; ``taken`` is seen to."""
    rank, appended_ms = backlog.rank, backlog.partition.appended_ms

    def place(offset: int) -> tuple[int, bool, int]:
        late_ms = rank.get(offset)
        return (appended_ms(offset), False, offset) if late_ms is None else (late_ms, True, offset)

    limit = min(map(place, back))
    settled = set(taken)
    for lease in list(backlog.leases.values()):
        behind = [offset for offset in lease.span() if offset not in settled and place(offset) > limit]
        if behind:
            packed = span_of(behind).packed()
            yield f.Released(backlog.group.gid, backlog.partition.pid, lease.lease_id, *packed, now_ns, "behind")


def outlived_expire(state: State, facts: list[f.Fact], now_ns: int) -> list[f.Fact]:
    """Messages whose lifetime ended while they were leased do not go back: they expire."""
    kept: list[f.Fact] = []
    for fact in facts:
        if type(fact) is f.Released:
            kept += _released(state.partitions[fact.pid], fact, now_ns)
        else:
            kept.append(fact)
    return kept


def _released(partition: Partition, fact: f.Released, now_ns: int) -> Iterator[f.Fact]:
    rest = fact.span()
    if partition.special or rest.first < partition.outlived_to(now_ns):
        over = span_of([offset for offset in rest if partition.lifetime_over(offset, now_ns)])
        if over.count:
            yield f.Expired(fact.gid, fact.pid, fact.lease_id, *over.packed(), now_ns)
            rest = span_of(rest.bitmap() - over.bitmap())
    if rest.count:
        yield f.Released(fact.gid, fact.pid, fact.lease_id, *rest.packed(), fact.at_ns, fact.reason)


def _without_overlap(facts: list[f.Fact], deaths: Sequence[Death]) -> list[f.Fact]:
    """A message that the call itself settles is not also taken back as being behind another one; one that is taken back
    is not extended."""
    own: dict[int, BitMap64] = {}
    for death in deaths:
        own.setdefault(death.lease_id, BitMap64()).add(death.offset)
    for fact in facts:
        if not (type(fact) is f.Released and fact.reason == "behind") and isinstance(
            fact, (f.Acked, f.Retried, f.Released, f.Expired)
        ):
            own.setdefault(fact.lease_id, BitMap64()).update(list(fact.span()))
    kept: list[f.Fact] = []
    for fact in facts:
        if type(fact) is f.Released and fact.reason == "behind":
            taken = own.setdefault(fact.lease_id, BitMap64())
            rest = fact.span().bitmap() - taken
            taken |= rest
            if not rest:
                continue
            fact = f.Released(fact.gid, fact.pid, fact.lease_id, *span_of(rest).packed(), fact.at_ns, "behind")
        elif type(fact) is f.Extended and fact.lease_id in own:
            rest = fact.span().bitmap() - own[fact.lease_id]
            if not rest:
                continue
            packed = span_of(rest).packed()
            fact = f.Extended(fact.gid, fact.pid, fact.lease_id, *packed, fact.at_ns, fact.deadline_ns)
        kept.append(fact)
    return kept


# -- together with outputs ------------------------------------------------------------------------------------------


def _with_outputs(
    state: State,
    command: SettleMany,
    group: Group,
    facts: list[f.Fact],
    deaths: Sequence[Death],
    settled: int,
    now_ns: int,
) -> Outcome:
    batches: list[Batch] = []
    published: list[PublishDone] = []
    beside = Beside()
    if group.policy.fifo:
        facts = _without_overlap(facts, deaths)
    facts = outlived_expire(state, facts, now_ns)
    if len({pid for pid, _ in command.publish}) != len(command.publish):
        return refuse(InvalidArgument("settle publishes two batches into one partition: put them into one batch"))
    for pid, batch in command.publish:
        partition = state.partitions.get(pid)
        if partition is None:
            return refuse(UnknownTopic(f"partition {pid} is not of this shard: it cannot be in the same record"))
        accepted = accept(state, partition, batch, now_ns, beside)
        if isinstance(accepted, HeadraceError):
            return refuse(accepted)
        fact, stamped, reply = accepted
        published.append(reply)
        if fact is not None and stamped is not None:
            facts.append(fact)
            batches.append(stamped)
            beside.note(partition, stamped)
    cancelled = 0
    for pid, span in command.cancel:
        partition = state.partitions.get(pid)
        if partition is None:
            return refuse(UnknownTopic(f"partition {pid} is not of this shard: cancel and settle cannot be one record"))
        known = span_of(span.bitmap() & partition.scheduled)
        if known.count:
            facts.append(f.Cancelled(pid, *known.packed(), now_ns))
            cancelled += known.count
    return Outcome(facts, SettleDone(settled, (), published, cancelled), batches, deaths)
