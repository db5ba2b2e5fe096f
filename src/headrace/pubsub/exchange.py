"""The ordinary broker: who gets what is published, what is kept for whom, what happens when somebody goes.

    publish ──► plan of the topic, remembered ──► sessions that end with their connection: straight to it
                while no subscription changes ──► sessions that last: kept, noted, then sent

What must survive a restart is noted as facts before anybody is told (``Ledger``): a message for a session that lasts is
sent when the note is durable, and its publisher is answered after that too. Without such sessions nothing is noted and
nothing waits.

No socket, no clock: the door feeds it packets and the time, and wakes it at ``next_due_ns``. Rights are asked when a
client subscribes, when a topic's plan is made (``rights_changed`` forgets the plans) and when a session is resumed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, cast

from headrace.limits import SECOND_NS
from headrace.pubsub import facts as f
from headrace.pubsub.bounds import Bounds
from headrace.pubsub.client import Client, Held, Link, Pending, QueueHeld, Rights
from headrace.pubsub.retained import Retained
from headrace.pubsub.share import Share, Waiting
from headrace.routing import SubscriptionTrie, split_share
from headrace.wire.mqtt import (
    Disconnected,
    Outbound,
    OutgoingMessage,
    Reason,
    Sent,
    SessionState,
    Stage,
    Subscription,
    Will,
)

__all__ = ["Exchange", "Ledger"]

_RETAINED_AHEAD: Final = 256
"""Retained messages put into a session that lasts before the client has acknowledged some."""
_PLAIN: Final[tuple[int, ...]] = ()


class Ledger(Protocol):
    """Where facts go."""

    @property
    def has_room(self) -> bool:
        """False while the disk is full or far behind: nothing should be begun that needs a note."""
        ...

    def note(self, fact: f.Fact) -> None:
        """Write it down; facts noted in one round are one frame."""
        ...

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when everything noted so far is durable."""
        ...


class _Seat(NamedTuple):
    """One client in a topic's plan; its overlapping subscriptions are one delivery [MQTT-3.3.4-2] [MQTT-3.3.4-3]."""

    client: Client
    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    own: tuple[int, bool, tuple[int, ...]] | None
    """The same for what it published itself: without its no-local subscriptions; None when nothing is left."""


class _Plan(NamedTuple):
    seats: list[_Seat]
    shares: list[Share]


class Exchange:
    """See the head of this file. ``publish_will`` is asked to publish a will as its client would have; ``on_end``
    is told when a session is over."""

    def __init__(
        self,
        bounds: Bounds | None = None,
        *,
        ledger: Ledger | None = None,
        publish_will: Callable[[Client, Will, int], None],
        on_end: Callable[[Client], None] | None = None,
    ) -> None:
        self.bounds = bounds or Bounds()
        self.clients: dict[str, Client] = {}
        self.shares: dict[str, Share] = {}
        self.retained = Retained(self.bounds.retained_messages_max, self.bounds.retained_bytes_max)
        self.kept_bytes = 0
        self.dropped_count = 0
        self.ledger = ledger
        self._publish_will = publish_will
        self._on_end = on_end
        self._trie: SubscriptionTrie[Client | Share, Held] = SubscriptionTrie()
        self._plans: dict[str, _Plan] = {}
        self._generation = 0
        self.last_uid = 0
        self.last_mid = 0
        self.due: list[tuple[int, int, Client]] = []

    # -- sessions ------------------------------------------------------------------------------------------------------

    def find(self, client_id: str) -> Client | None:
        return self.clients.get(client_id)

    def open(
        self, client_id: str, owner: str, clean_start: bool, expiry_s: int, will: Will | None, now_ns: int
    ) -> tuple[Client, bool] | None:
        """The session for a client that was let in, and whether it goes on with an earlier one; None when there is
        room for no more. It is the client's when it is attached; whoever had it before is gone already.
        """
        client = self.clients.get(client_id)
        if client is not None and (clean_start or not client.expiry_s):
            self.end(client, now_ns)
            client = None
        if client is None:
            if len(self.clients) >= self.bounds.sessions_max:
                return None
            self.last_uid += 1
            client = self.clients[client_id] = Client(client_id, self.last_uid, owner, expiry_s)
            if client.reserves:
                client.received = set()
                self.note(f.Opened(client.uid, client_id, owner, expiry_s, now_ns))
            self._stand_by(client, will)
            return client, False
        client.expiry_s = expiry_s
        client.will = None  # it came back before its will was due [MQTT-3.1.3-9]
        self.note(f.Resumed(client.uid, expiry_s, now_ns))
        self._stand_by(client, will)
        return client, True

    def _stand_by(self, client: Client, will: Will | None) -> None:
        if will is not None and client.reserves:
            client.standing_will = will
            self.note(willed(client.uid, will))

    def attach(self, client: Client, link: Link, rights: Rights | None, now_ns: int) -> None:
        """The connection stands. What its principal may no longer read is taken away; what waits for it goes out."""
        client.link = link
        client.rights = rights
        if rights is not None and client.subscriptions:
            for topic_filter in list(client.subscriptions):
                if not rights.may_subscribe(topic_filter):
                    self.unsubscribe(client, topic_filter)
            self._plans.clear()  # made while it was away, when its rights were not asked
        for topic_filter in client.subscriptions or ():
            share = self.shares.get(topic_filter)
            if share is not None:
                self._serve(share, now_ns)

    def restrict(self, client: Client, state: SessionState, rights: Rights) -> None:
        """Before a session goes on: what was kept for it and it may no longer read is not sent."""

        def stays(entry: Outbound) -> bool:
            if entry.message is None or rights.may_read(entry.message.topic):
                return True
            self.finished(client, entry.token)
            return False

        state.inflight = [entry for entry in state.inflight if stays(entry)]
        state.queued = [entry for entry in state.queued if stays(entry)]

    def abandon(self, client: Client, goes_on: bool, now_ns: int) -> None:
        """The connection ended before it stood; its will was never in force."""
        client.opening = None
        client.standing_will = None
        client.gone_ns = now_ns
        if not goes_on:
            self.end(client, now_ns)
            return
        self.note(f.Willed(client.uid))
        self.note(f.Left(client.uid, client.expiry_s, now_ns))
        self._wake_at(client, now_ns)

    def disconnected(self, client: Client, link: Link, event: Disconnected, now_ns: int) -> None:
        """A connection has ended; its session is kept, or ends with it."""
        if client.link is not link:
            return
        client.link = None
        client.backlog = None
        client.standing_will = None
        client.gone_ns = now_ns
        client.expiry_s = min(event.session_expiry_s, self.bounds.session_expiry_s_max)
        state = link.session.export_state()
        self._sort_out(client, state, now_ns)
        will = event.will
        if not client.expiry_s:
            self.end(client, now_ns)
            if will is not None:
                self._publish_will(client, will, now_ns)
            return
        client.state = state
        if link.session.unanswered_count:
            client.leaving = link
        sent_mid = max((entry.token.mid for entry in state.inflight), default=0)
        self.note(f.Left(client.uid, client.expiry_s, now_ns, sent_mid))
        delay_s = (will.properties or {}).get("will_delay_interval", 0) if will is not None else 0
        if will is not None and delay_s:
            client.will = will
            client.will_due_ns = now_ns + min(delay_s, client.expiry_s) * SECOND_NS
            self.note(willed(client.uid, will, client.will_due_ns))
            heapq.heappush(self.due, (client.will_due_ns, client.uid, client))
        else:
            self.note(f.Willed(client.uid))
            if will is not None:
                self._publish_will(client, will, now_ns)
        self._wake_at(client, now_ns)

    def answered(self, client: Client, link: Link) -> None:
        """A connection that had ended has no more answers to wait for: its client may go on."""
        if client.leaving is not link:
            return
        client.leaving = None
        if client.state is not None:
            client.state.received = link.session.export_state().received
        waiter, client.waiter = client.waiter, None
        if waiter is not None:
            waiter()

    def end(self, client: Client, now_ns: int) -> None:
        """The session is over, with everything kept for it; a will that was still to come is due now."""
        if self.clients.get(client.client_id) is client:
            del self.clients[client.client_id]
        left = [
            (pending, pending.share)
            for pending in client.kept.values()
            if pending.share is not None and pending.qos < 2
        ]
        for topic_filter in list(client.subscriptions or ()):
            self.unsubscribe(client, topic_filter)
        self.kept_bytes -= client.kept_bytes
        client.kept_bytes = 0
        client.kept.clear()
        if client.reserves:
            self.note(f.Ended(client.uid))
        for pending, share in left:  # they go to the others
            if share.members:
                self._offer(share, pending.message, pending.qos, now_ns)
        if self._on_end is not None:
            self._on_end(client)
        client.reserves = False
        client.expiry_s = 0
        client.state = None
        client.leaving = None
        will, client.will = client.will, None
        if will is not None:
            self._publish_will(client, will, now_ns)

    def _sort_out(self, client: Client, state: SessionState, now_ns: int) -> None:
        """What of a connection's messages stays in the session: no queue deliveries (their leases are given back), no
        shared messages that another member can have."""
        placed: set[int] = set()
        moving: list[Pending] = []

        def stays(entry: Outbound) -> bool:
            pending = entry.token
            if not isinstance(pending, Pending):
                return False
            if pending.share is not None and (entry.qos == 1 or entry.stage is Stage.QUEUED):
                moving.append(pending)
                return False
            placed.add(pending.mid)
            return True

        state.inflight = [entry for entry in state.inflight if stays(entry)]
        state.queued = [entry for entry in state.queued if stays(entry)]
        for pending in moving:
            self._finish(client, pending)
        for pending in client.kept.values():
            if pending.is_durable and pending.mid not in placed:
                state.queued.append(_outbound(pending))
        for pending in moving:
            if pending.share is not None:
                self._offer(pending.share, pending.message, pending.qos, now_ns)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, client: Client, asked: Subscription, identifier: int, now_ns: int) -> int:
        """The reason code for one filter; what is retained there is put in line (``pump``)."""
        rights = client.rights
        topic_filter = asked.topic_filter
        if rights is not None and not rights.may_subscribe(topic_filter):
            return Reason.NOT_AUTHORIZED
        held = Held(asked.qos, asked.no_local, asked.retain_as_published, identifier)
        mine = client.subscriptions
        if mine is None:
            mine = client.subscriptions = {}
        is_new = topic_filter not in mine
        if is_new and len(mine) >= self.bounds.subscriptions_max:
            return Reason.QUOTA_EXCEEDED
        group, inner = split_share(topic_filter)
        mine[topic_filter] = held
        if client.reserves:
            self.note(
                f.Subscribed(client.uid, topic_filter, held.qos, held.no_local, held.retain_as_published, identifier)
            )
        if group is not None:
            self._join(client, topic_filter, inner, held)
            self._serve(self.shares[topic_filter], now_ns)
            return asked.qos
        self._trie.add(inner, client, held)
        if asked.retain_handling == 0 or (asked.retain_handling == 1 and is_new):
            ids = (identifier,) if identifier else _PLAIN
            found = self.retained.matching(inner, now_ns)
            if client.backlog is None:
                client.backlog = deque()
            client.backlog.append(
                (stored.message, min(stored.qos, held.qos), ids)
                for stored in found
                if client.rights is None or client.rights.may_read(stored.message.topic)
            )
        return asked.qos

    def take_up(self, client: Client, topic_filter: str, held: Held) -> None:
        """A subscription that a session had before: nothing is noted, nothing retained is sent."""
        group, inner = split_share(topic_filter)
        if group is None:
            self._trie.add(inner, client, held)
        else:
            self._join(client, topic_filter, inner, held)

    def _join(self, client: Client, topic_filter: str, inner: str, held: Held) -> None:
        share = self.shares.get(topic_filter)
        if share is None:
            share = self.shares[topic_filter] = Share(topic_filter, inner)
            self._trie.add(inner, share, Held(2))
        share.members[client] = held

    def unsubscribe(self, client: Client, topic_filter: str) -> bool:
        """False when it was not subscribed. What was on its way already still comes."""
        mine = client.subscriptions
        if not mine or mine.pop(topic_filter, None) is None:
            return False
        if client.reserves:
            self.note(f.Unsubscribed(client.uid, topic_filter))
        group, inner = split_share(topic_filter)
        if group is None:
            self._trie.remove(inner, client)
            return True
        share = self.shares[topic_filter]
        share.members.pop(client, None)
        for pending in client.kept.values():  # what it has of it is its own to finish [MQTT-3.10.4-3]
            if pending.share is share:
                pending.share = None
        if not share.members:
            del self.shares[topic_filter]
            self._trie.remove(inner, share)
            self.kept_bytes -= share.waiting_bytes
        return True

    def pump(self, client: Client, now_ns: int) -> None:
        """Send retained messages of new subscriptions as fast as the client takes them."""
        lines, link = client.backlog, client.link
        if not lines or link is None:
            return
        session = link.session
        while lines:
            for message, qos, ids in lines[0]:
                if qos and client.reserves:
                    pending = self._keep(client, message, qos, True, ids, None)
                    if pending is not None:
                        self._note_kept(qos, [pending])
                        self._then_send([pending], now_ns)
                else:
                    session.send_publish(message, qos, now_ns, retain=True, subscription_identifiers=ids)
                    link.touch()
                if not session.has_room or len(client.kept) >= _RETAINED_AHEAD:
                    return
            lines.popleft()
        client.backlog = None

    def subscribe_queue(self, client: Client, topic_filter: str, held: QueueHeld) -> None:
        """Remember a subscription to a queue, for when its client comes back."""
        if client.queues is None:
            client.queues = {}
        client.queues[topic_filter] = held
        if client.reserves:
            self.note(
                f.QueueSubscribed(
                    client.uid,
                    topic_filter,
                    held.qos,
                    held.identifier,
                    held.group,
                    held.prefetch,
                    held.by_puback,
                    held.start,
                )
            )

    def unsubscribe_queue(self, client: Client, topic_filter: str) -> bool:
        """False when it was not subscribed."""
        if not client.queues or client.queues.pop(topic_filter, None) is None:
            return False
        if client.reserves:
            self.note(f.Unsubscribed(client.uid, topic_filter))
        return True

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: OutgoingMessage,
        qos: int,
        retain: bool,
        origin: Client | None,
        now_ns: int,
        packet_id: int = 0,
    ) -> tuple[int, bool]:
        """Deliver to everyone who subscribed. The reason code, and whether the answer must wait until all is durable
        (``then``). ``packet_id``: of a QoS 2 publish, whose identifier is in use from here on."""
        waits = False
        if (qos or retain) and self.ledger is not None and not self.ledger.has_room:
            return Reason.QUOTA_EXCEEDED, False
        if retain:
            refused, waits = self._retain(message, qos)
            if refused:
                return refused, False
        plan = self._plans.get(message.topic) if self._generation == self._trie.generation else None
        if plan is None:
            plan = self._make_plan(message.topic)
        keeping: list[Pending] | None = None
        for client, max_qos, as_published, ids, own in plan.seats:
            if client is origin:
                if own is None:
                    continue
                max_qos, as_published, ids = own
            its_qos = qos if qos < max_qos else max_qos  # noqa: FURB136 - once a delivery
            if its_qos and client.reserves:
                pending = self._keep(client, message, its_qos, retain and as_published, ids, None)
                if pending is not None:
                    if keeping is None:
                        keeping = []
                    keeping.append(pending)
                continue
            link = client.link
            if link is not None:
                sent = link.session.send_publish(
                    message, its_qos, now_ns, retain=retain and as_published, subscription_identifiers=ids
                )
                link.touch()
                if sent is Sent.QUEUE_FULL:
                    self._overwhelmed(client)
        lasting = origin is not None and packet_id and origin.reserves
        if lasting and origin is not None and origin.received is not None:
            origin.received.add(packet_id)
        if keeping is not None:
            self._note_kept(qos, keeping, origin if lasting else None, packet_id)
            waits = True
        elif lasting and origin is not None:
            self.note(f.Received(origin.uid, packet_id))
            waits = True
        if keeping is not None:
            self._then_send(keeping, now_ns)
        for share in plan.shares:
            waits = self._offer(share, message, qos, now_ns) or waits
        found = plan.seats or plan.shares
        return Reason.SUCCESS if found else Reason.NO_MATCHING_SUBSCRIBERS, waits

    def release(self, client: Client, packet_id: int) -> bool:
        """PUBREL: the identifier of a QoS 2 publish is free again; whether to wait until that is durable."""
        if client.received is not None:
            client.received.discard(packet_id)
            self.note(f.Released(client.uid, packet_id))
        return client.reserves

    def recorded(self, client: Client, token: Any) -> bool:
        """PUBREC: the client has a QoS 2 message; whether to wait until that is durable."""
        if isinstance(token, Pending) and client.reserves:
            self.note(f.Recorded(client.uid, token.mid))
            return True
        return False

    def finished(self, client: Client, token: Any) -> None:
        """The client is done with a message (or will never get it)."""
        if isinstance(token, Pending):
            self._finish(client, token)

    def then(self, callback: Callable[[], None]) -> None:
        """When everything so far is durable."""
        if self.ledger is None:
            callback()
        else:
            self.ledger.then(callback)

    def _retain(self, message: OutgoingMessage, qos: int) -> tuple[int, bool]:
        """Refused with a reason; or done, and whether something was noted."""
        if not message.payload:  # [MQTT-3.3.1-6] [MQTT-3.3.1-7]
            if self.retained.remove(message.topic):
                self.note(f.Unretained(message.topic))
                return 0, True
            return 0, False
        if not self.retained.put(message, qos):
            return Reason.QUOTA_EXCEEDED, False
        self.note(f.Retained(message_fact(message), qos))
        return 0, True

    def rights_changed(self) -> None:
        """Somebody's rights are not what they were: ask again before the next delivery."""
        self._plans.clear()

    def _make_plan(self, topic: str) -> _Plan:
        if self._generation != self._trie.generation or len(self._plans) >= self.bounds.plans_max:
            self._plans.clear()
            self._generation = self._trie.generation
        by_client: dict[Client, list[Held]] = {}
        shares: list[Share] = []
        for who, held in self._trie.match(topic):
            if isinstance(who, Share):
                shares.append(who)
            elif who.rights is None or who.link is None or who.rights.may_read(topic):
                by_client.setdefault(who, []).append(held)
        seats = []
        for client, several in by_client.items():
            qos, as_published, ids = _merged(several)
            foreign = [held for held in several if not held.no_local]
            seats.append(_Seat(client, qos, as_published, ids, _merged(foreign) if foreign else None))
        plan = self._plans[topic] = _Plan(seats, shares)
        return plan

    # -- shared subscriptions ------------------------------------------------------------------------------------------

    def _offer(self, share: Share, message: OutgoingMessage, qos: int, now_ns: int, mid: int = 0) -> bool:
        """Give a message to one member, or let it wait; whether something was noted. ``mid``: it has waited before."""
        client = share.choose(qos, message.topic)
        if client is None:
            return self._let_wait(share, message, qos, mid) if qos else False
        held = share.members[client]
        its_qos = min(qos, held.qos)
        ids = (held.identifier,) if held.identifier else _PLAIN
        if its_qos and client.reserves:
            pending = self._keep(client, message, its_qos, False, ids, share)
            if pending is None:
                return False
            if mid:
                self.note(f.Handed(mid, share.topic_filter))
            self._note_kept(qos, [pending])
            self._then_send([pending], now_ns)
            return True
        if mid:
            self.note(f.Handed(mid, share.topic_filter))
        link = client.link
        if link is not None:
            token = Pending(0, message, its_qos, False, ids, 0, client, share) if its_qos else None
            link.session.send_publish(message, its_qos, now_ns, subscription_identifiers=ids, token=token)
            link.touch()
        return False

    def _let_wait(self, share: Share, message: OutgoingMessage, qos: int, mid: int) -> bool:
        lasting = [member for member in share.members if member.reserves]
        if not lasting:
            return False  # no session that waits: as if nobody had subscribed
        size = message.size_bytes
        bounds = self.bounds
        if (
            len(share.waiting) >= bounds.kept_messages_max
            or share.waiting_bytes + size > bounds.kept_bytes_max
            or self.kept_bytes + size > bounds.kept_bytes_in_all_max
        ):
            self.dropped_count += 1
            return False
        if not mid:
            self.last_mid += 1
            mid = self.last_mid
            self.note(f.Kept(mid, message_fact(message), qos, [], [share.topic_filter]))
        share.waiting.append(Waiting(mid, message, qos))
        share.waiting_bytes += size
        self.kept_bytes += size
        return True

    def hand_back(self, client: Client, pending: Pending, share: Share, now_ns: int) -> None:
        """What a member that went away had not acknowledged goes to the others, or waits."""
        self._finish(client, pending)
        self._offer(share, pending.message, pending.qos, now_ns)

    def _serve(self, share: Share, now_ns: int) -> None:
        """A member is there: what waited is its."""
        while share.waiting and share.choose(1, share.waiting[0].message.topic) is not None:
            waiting = share.waiting.popleft()
            share.waiting_bytes -= waiting.message.size_bytes
            self.kept_bytes -= waiting.message.size_bytes
            if waiting.message.seconds_left(now_ns) == -1:
                self.note(f.Handed(waiting.mid, share.topic_filter))
                continue
            self._offer(share, waiting.message, waiting.qos, now_ns, waiting.mid)

    # -- messages kept for sessions ------------------------------------------------------------------------------------

    def _keep(
        self,
        client: Client,
        message: OutgoingMessage,
        qos: int,
        retain: bool,
        ids: tuple[int, ...],
        share: Share | None,
    ) -> Pending | None:
        """A place for it in the session; None when there is none left."""
        size, bounds = message.size_bytes, self.bounds
        if (
            len(client.kept) >= bounds.kept_messages_max
            or client.kept_bytes + size > bounds.kept_bytes_max
            or self.kept_bytes + size > bounds.kept_bytes_in_all_max
            or not (packet_id := client.take_packet_id())
        ):
            self.dropped_count += 1
            self._overwhelmed(client)
            return None
        self.last_mid += 1
        pending = Pending(self.last_mid, message, qos, retain, ids, packet_id, client, share)
        client.kept[pending.mid] = pending
        client.kept_bytes += size
        self.kept_bytes += size
        return pending

    def _note_kept(
        self,
        qos: int,
        keeping: list[Pending],
        origin: Client | None = None,
        packet_id: int = 0,
    ) -> None:
        if self.ledger is not None:
            uid = origin.uid if origin is not None else 0
            self.note(kept_fact(keeping, qos, uid, packet_id if uid else 0))

    def _then_send(self, keeping: list[Pending], now_ns: int) -> None:
        if self.ledger is None:
            for pending in keeping:
                self._send(pending, now_ns)
        else:
            self.ledger.then(lambda: self._send_all(keeping, now_ns))

    def _send_all(self, keeping: list[Pending], now_ns: int) -> None:
        for pending in keeping:
            self._send(pending, now_ns)

    def _send(self, pending: Pending, now_ns: int) -> None:
        """It is durable: to the client, or into the line of its session."""
        client = pending.client
        if client.kept.get(pending.mid) is not pending:
            return
        pending.is_durable = True
        link = client.link
        if link is None:
            if client.state is not None:
                client.state.queued.append(_outbound(pending))
            return
        sent = link.session.send_publish(
            pending.message,
            pending.qos,
            now_ns,
            retain=pending.retain,
            subscription_identifiers=pending.identifiers,
            token=pending,
            packet_id=pending.packet_id,
        )
        link.touch()
        if sent in _NEVER:
            self._finish(client, pending)
            if sent is Sent.QUEUE_FULL:
                self.dropped_count += 1
                self._overwhelmed(client)

    def _finish(self, client: Client, pending: Pending) -> None:
        if client.kept.pop(pending.mid, None) is None:
            return
        client.used.discard(pending.packet_id)
        client.kept_bytes -= pending.message.size_bytes
        self.kept_bytes -= pending.message.size_bytes
        if client.reserves:
            self.note(f.Finished(client.uid, pending.mid))

    def _overwhelmed(self, client: Client) -> None:
        if self.bounds.cuts_slow_clients and client.link is not None:
            client.link.end(Reason.QUOTA_EXCEEDED, "more messages wait for this client than the server keeps")

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_due_ns(self) -> int | None:
        return self.due[0][0] if self.due else None

    def on_due(self, now_ns: int) -> None:
        """Sessions that waited long enough, and wills whose delay is over."""
        while self.due and self.due[0][0] <= now_ns:
            client = heapq.heappop(self.due)[2]
            if self.clients.get(client.client_id) is not client or client.link is not None or client.opening:
                continue
            if client.will is not None and client.will_due_ns <= now_ns:
                will, client.will = client.will, None
                self.note(f.Willed(client.uid))
                self._publish_will(client, will, now_ns)
            expires_ns = client.expires_at_ns()
            if expires_ns is not None and expires_ns <= now_ns:
                self.end(client, now_ns)

    def _wake_at(self, client: Client, now_ns: int) -> None:
        expires_ns = client.expires_at_ns()
        if expires_ns is not None:
            heapq.heappush(self.due, (max(expires_ns, now_ns), client.uid, client))

    def note(self, fact: f.Fact) -> None:
        if self.ledger is not None:
            self.ledger.note(fact)


_NEVER: Final = frozenset({Sent.QUEUE_FULL, Sent.TOO_LARGE, Sent.EXPIRED, Sent.DROPPED})


def _merged(several: list[Held]) -> tuple[int, bool, tuple[int, ...]]:
    if len(several) == 1:
        held = several[0]
        return held.qos, held.retain_as_published, (held.identifier,) if held.identifier else _PLAIN
    ids = tuple(held.identifier for held in several if held.identifier)
    return max(held.qos for held in several), any(held.retain_as_published for held in several), ids


def _outbound(pending: Pending) -> Outbound:
    return Outbound(
        pending.message, pending.qos, pending.retain, pending.identifiers, pending, pending.packet_id, Stage.QUEUED
    )


def kept_fact(keeping: list[Pending], qos: int, origin: int = 0, packet_id: int = 0) -> f.Kept:
    """One message and all it is kept for."""
    targets = [
        f.Target(
            p.mid,
            p.client.uid,
            p.qos,
            p.retain,
            p.packet_id,
            list(p.identifiers),
            p.share is not None,
            p.share.topic_filter if p.share is not None else "",
        )
        for p in keeping
    ]
    first = keeping[0]
    return f.Kept(first.mid, message_fact(first.message), qos, targets, [], origin, packet_id)


def message_fact(message: OutgoingMessage) -> f.Message:
    """A message as facts have it."""
    properties = cast("dict[str, Any] | None", message.properties)
    return f.Message(message.topic, message.payload, properties, message.expires_at_ns)


def willed(uid: int, will: Will, due_ns: int = 0) -> f.Willed:
    """A will as facts have it: its expiry counts from when it is published, so its properties stay as they are."""
    properties = cast("dict[str, Any] | None", will.properties)
    return f.Willed(uid, f.Message(will.topic, will.payload, properties), will.qos, will.retain, due_ns)
