"""What an exchange was, from facts; and the facts that say what it is.

``Recovery`` folds the facts of a snapshot and of the journal after it into plain dictionaries and, when the last one is
in, sets an empty exchange up: sessions whose clients are all away, what is kept for them, retained messages, wills.
``facts_of`` is the inverse: the fewest facts that fold to what an exchange is now. A snapshot is their encoding, so
that there is one way to read the past and not two.

What a crash leaves open is decided here, on the safe side. A message that may have been sent (its client was
connected, or it was under way when the client left) is sent again under its identifier and marked as a duplicate. A
client that was connected is taken to have lost its connection now: its will is due, after its delay. What members of a
shared subscription had not acknowledged waits in the group again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, cast

from headrace.limits import MQTT_INFLIGHT_MAX, SECOND_NS
from headrace.pubsub import facts as f
from headrace.pubsub.client import Client, Held, Pending, QueueHeld
from headrace.pubsub.exchange import Exchange, kept_fact, message_fact, willed
from headrace.pubsub.share import Waiting
from headrace.routing import split_share
from headrace.wire.mqtt import Outbound, OutgoingMessage, Properties, SessionState, Stage, Will

__all__ = ["Recovery", "facts_of"]

_ALL: Final = 1 << 62


class _Session:
    """One session while facts are folded."""

    __slots__ = ("client", "is_connected", "recorded", "sent_mid", "shared")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_connected = True
        self.sent_mid = 0
        self.recorded: set[int] = set()
        self.shared: dict[int, str] = {}  # mid → the filter it came by


class Recovery:
    """Fold every fact in order, then ``finish``."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sessions: dict[int, _Session] = {}
        self._members: dict[str, set[int]] = {}
        self._waiting: dict[str, dict[int, Waiting]] = {}
        self._folds = {
            f.Opened: self._opened,
            f.Resumed: self._resumed,
            f.Left: self._left,
            f.Ended: self._ended,
            f.Subscribed: self._subscribed,
            f.Unsubscribed: self._unsubscribed,
            f.Kept: self._kept,
            f.Received: self._received,
            f.Released: self._released,
            f.Recorded: self._recorded,
            f.Finished: self._finished,
            f.Retained: self._retained,
            f.Unretained: self._unretained,
            f.Willed: self._willed,
            f.Handed: self._handed,
            f.QueueSubscribed: self._queue_subscribed,
            f.Counted: self._counted,
        }

    def fold(self, fact: f.Fact) -> None:
        """One fact more. One about a session that is not known changes nothing: its session had ended before."""
        self._folds[type(fact)](fact)  # type: ignore[operator]

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _opened(self, fact: f.Opened) -> None:
        client = Client(fact.client_id, fact.uid, fact.owner, fact.expiry_s)
        client.received = set()
        client.gone_ns = fact.at_ns
        self._sessions[fact.uid] = _Session(client)
        self._count(uid=fact.uid)

    def _resumed(self, fact: f.Resumed) -> None:
        session = self._sessions.get(fact.uid)
        if session is not None:
            session.is_connected = True
            session.client.expiry_s = fact.expiry_s
            session.client.will = None

    def _left(self, fact: f.Left) -> None:
        session = self._sessions.get(fact.uid)
        if session is not None:
            session.is_connected = False
            session.sent_mid = max(session.sent_mid, fact.sent_mid)
            session.client.expiry_s = fact.expiry_s
            session.client.gone_ns = fact.at_ns

    def _ended(self, fact: f.Ended) -> None:
        session = self._sessions.pop(fact.uid, None)
        if session is not None:
            for topic_filter in list(session.client.subscriptions or ()):
                self._leave(topic_filter, fact.uid)

    def _willed(self, fact: f.Willed) -> None:
        session = self._sessions.get(fact.uid)
        if session is None:
            return
        client, said = session.client, fact.message
        client.will_due_ns = fact.due_ns
        client.will = None
        if said is not None:
            client.will = Will(said.topic, said.payload, fact.qos, fact.retain, _properties(said.properties))

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def _subscribed(self, fact: f.Subscribed) -> None:
        session = self._sessions.get(fact.uid)
        if session is None:
            return
        client = session.client
        if client.subscriptions is None:
            client.subscriptions = {}
        client.subscriptions[fact.topic_filter] = Held(
            fact.qos, fact.no_local, fact.retain_as_published, fact.identifier
        )
        if split_share(fact.topic_filter)[0] is not None:
            self._members.setdefault(fact.topic_filter, set()).add(fact.uid)

    def _queue_subscribed(self, fact: f.QueueSubscribed) -> None:
        session = self._sessions.get(fact.uid)
        if session is None:
            return
        client = session.client
        if client.queues is None:
            client.queues = {}
        client.queues[fact.topic_filter] = QueueHeld(
            fact.qos, fact.identifier, fact.group, fact.prefetch, fact.by_puback, fact.start
        )

    def _unsubscribed(self, fact: f.Unsubscribed) -> None:
        session = self._sessions.get(fact.uid)
        if session is None:
            return
        client = session.client
        if client.queues is not None and fact.topic_filter in client.queues:
            del client.queues[fact.topic_filter]
        elif client.subscriptions is not None and client.subscriptions.pop(fact.topic_filter, None) is not None:
            self._leave(fact.topic_filter, fact.uid)
            for mid in [mid for mid, share in session.shared.items() if share == fact.topic_filter]:
                del session.shared[mid]

    def _leave(self, topic_filter: str, uid: int) -> None:
        members = self._members.get(topic_filter)
        if members is not None:
            members.discard(uid)
            if not members:  # with the last member goes what waited for any
                del self._members[topic_filter]
                self._waiting.pop(topic_filter, None)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _kept(self, fact: f.Kept) -> None:
        message = _message(fact.message)
        for target in fact.targets:
            self._count(mid=target.mid)
            session = self._sessions.get(target.uid)
            if session is None:
                continue
            pending = Pending(
                target.mid,
                message,
                target.qos,
                target.retain,
                tuple(target.identifiers),
                target.packet_id,
                session.client,
            )
            pending.is_durable = True
            session.client.kept[target.mid] = pending
            if target.share:
                session.shared[target.mid] = target.share
        self._count(mid=fact.mid)
        for topic_filter in fact.shares:
            self._waiting.setdefault(topic_filter, {})[fact.mid] = Waiting(fact.mid, message, fact.qos)
        if fact.origin:
            self._note_received(fact.origin, fact.packet_id)

    def _received(self, fact: f.Received) -> None:
        self._note_received(fact.uid, fact.packet_id)

    def _note_received(self, uid: int, packet_id: int) -> None:
        session = self._sessions.get(uid)
        if session is not None and session.client.received is not None:
            session.client.received.add(packet_id)

    def _released(self, fact: f.Released) -> None:
        session = self._sessions.get(fact.uid)
        if session is not None and session.client.received is not None:
            session.client.received.discard(fact.packet_id)

    def _recorded(self, fact: f.Recorded) -> None:
        session = self._sessions.get(fact.uid)
        if session is not None and fact.mid in session.client.kept:
            session.recorded.add(fact.mid)

    def _finished(self, fact: f.Finished) -> None:
        session = self._sessions.get(fact.uid)
        if session is not None:
            session.client.kept.pop(fact.mid, None)
            session.recorded.discard(fact.mid)
            session.shared.pop(fact.mid, None)

    def _handed(self, fact: f.Handed) -> None:
        self._waiting.get(fact.topic_filter, {}).pop(fact.mid, None)

    def _retained(self, fact: f.Retained) -> None:
        self._exchange.retained.put(_message(fact.message), fact.qos)

    def _unretained(self, fact: f.Unretained) -> None:
        self._exchange.retained.remove(fact.topic)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _counted(self, fact: f.Counted) -> None:
        self._count(uid=fact.last_uid, mid=fact.last_mid)

    def _count(self, uid: int = 0, mid: int = 0) -> None:
        exchange = self._exchange
        exchange.last_uid = max(exchange.last_uid, uid)
        exchange.last_mid = max(exchange.last_mid, mid)

    # -- setting up ----------------------------------------------------------------------------------------------------

    def finish(self, now_ns: int) -> None:
        """The facts are all in. The exchange notes what follows from the crash, so its ledger must be there."""
        exchange = self._exchange
        for session in self._sessions.values():
            self._set_up(session, now_ns)
        for topic_filter, waiting in self._waiting.items():
            share = exchange.shares.get(topic_filter)
            if share is not None:
                share.waiting = deque(waiting[mid] for mid in sorted(waiting))
                share.waiting_bytes = sum(one.message.size_bytes for one in share.waiting)
                exchange.kept_bytes += share.waiting_bytes
        for session in self._sessions.values():
            self._give_back(session, now_ns)
        for session in self._sessions.values():
            self._lose(session, now_ns)

    def _set_up(self, session: _Session, now_ns: int) -> None:
        exchange, client = self._exchange, session.client
        exchange.clients[client.client_id] = client
        for topic_filter, held in (client.subscriptions or {}).items():
            exchange.take_up(client, topic_filter, held)
        client.kept = {mid: client.kept[mid] for mid in sorted(client.kept)}
        client.kept_bytes = sum(pending.message.size_bytes for pending in client.kept.values())
        client.used = {pending.packet_id for pending in client.kept.values()}
        client.last_packet_id = next((pending.packet_id for pending in reversed(client.kept.values())), 0)
        exchange.kept_bytes += client.kept_bytes
        sent_mid = _ALL if session.is_connected else session.sent_mid
        state = SessionState(received=sorted(client.received or ()))
        for mid, pending in client.kept.items():
            if mid in session.recorded:
                state.inflight.append(_under_way(pending, Stage.RELEASED))
            elif mid <= sent_mid and len(state.inflight) < MQTT_INFLIGHT_MAX:
                state.inflight.append(_under_way(pending, Stage.SENT))
            else:
                state.queued.append(_under_way(pending, Stage.QUEUED))
        client.state = state

    def _give_back(self, session: _Session, now_ns: int) -> None:
        """Shared messages that another member may have wait in the group."""
        exchange, client = self._exchange, session.client
        if not session.shared or client.state is None:
            return
        for mid in sorted(session.shared):
            pending, share = client.kept[mid], exchange.shares.get(session.shared[mid])
            if share is not None and pending.qos < 2:
                exchange.hand_back(client, pending, share, now_ns)
            else:
                pending.share = share
        state = client.state
        state.inflight = [entry for entry in state.inflight if entry.token.mid in client.kept]
        state.queued = [entry for entry in state.queued if entry.token.mid in client.kept]

    def _lose(self, session: _Session, now_ns: int) -> None:
        """Whoever was connected is not any more."""
        exchange, client = self._exchange, session.client
        if session.is_connected:
            client.gone_ns = now_ns
            sent_mid = max((entry.token.mid for entry in client.state.inflight), default=0) if client.state else 0
            exchange.note(f.Left(client.uid, client.expiry_s, now_ns, sent_mid))
            will = client.will
            if will is not None:
                delay_s = (will.properties or {}).get("will_delay_interval", 0)
                client.will_due_ns = now_ns + min(delay_s, client.expiry_s) * SECOND_NS
                exchange.note(willed(client.uid, will, client.will_due_ns))
        if client.will is not None:
            heapq.heappush(exchange.due, (client.will_due_ns, client.uid, client))
        expires_ns = client.expires_at_ns()
        if expires_ns is not None:
            heapq.heappush(exchange.due, (max(expires_ns, now_ns), client.uid, client))


def facts_of(exchange: Exchange) -> Iterator[f.Fact]:
    """What an exchange is now."""
    yield f.Counted(exchange.last_uid, exchange.last_mid)
    for stored in exchange.retained.all():
        yield f.Retained(message_fact(stored.message), stored.qos)
    lasting = [client for client in exchange.clients.values() if client.reserves]
    together: dict[int, list[Pending]] = {}
    for client in lasting:
        yield f.Opened(client.uid, client.client_id, client.owner, client.expiry_s, client.gone_ns)
        for topic_filter, held in (client.subscriptions or {}).items():
            yield f.Subscribed(
                client.uid, topic_filter, held.qos, held.no_local, held.retain_as_published, held.identifier
            )
        for topic_filter, queue in (client.queues or {}).items():
            yield f.QueueSubscribed(
                client.uid,
                topic_filter,
                queue.qos,
                queue.identifier,
                queue.group,
                queue.prefetch,
                queue.by_puback,
                queue.start,
            )
        will = client.will or client.standing_will
        if will is not None:
            yield willed(client.uid, will, client.will_due_ns if client.will is not None else 0)
        for packet_id in sorted(client.received or ()):
            yield f.Received(client.uid, packet_id)
        for pending in client.kept.values():
            together.setdefault(id(pending.message), []).append(pending)
    for kept in together.values():
        yield kept_fact(kept, max(pending.qos for pending in kept))
    for share in exchange.shares.values():
        for waiting in share.waiting:
            yield f.Kept(waiting.mid, message_fact(waiting.message), waiting.qos, [], [share.topic_filter])
    for client in lasting:
        state = client.state if client.link is None else client.link.session.export_state()
        sent_mid = 0
        for entry in state.inflight if state is not None else ():
            if isinstance(entry.token, Pending):
                sent_mid = max(sent_mid, entry.token.mid)
                if entry.stage >= Stage.RECORDED:
                    yield f.Recorded(client.uid, entry.token.mid)
        if client.link is None:
            yield f.Left(client.uid, client.expiry_s, client.gone_ns, sent_mid)


def _under_way(pending: Pending, stage: Stage) -> Outbound:
    message = None if stage is Stage.RELEASED else pending.message
    return Outbound(message, pending.qos, pending.retain, pending.identifiers, pending, pending.packet_id, stage)


def _properties(plain: dict[str, Any] | None) -> Properties | None:
    """Pairs come back from an encoding as lists."""
    if plain and "user_properties" in plain:
        plain = {**plain, "user_properties": [(name, value) for name, value in plain["user_properties"]]}
    return cast("Properties | None", plain)


def _message(fact: f.Message) -> OutgoingMessage:
    return OutgoingMessage(fact.topic, fact.payload, _properties(fact.properties), fact.expires_at_ns)
