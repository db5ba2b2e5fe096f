"""What clients saw of topics and groups, and the rules it has to keep. The broker is never asked.

A message is known by its topic and its text ``key:number``; numbers of a key rise as they are published, one after the
other was confirmed. Everything a group was handed is kept in order of lease ids, which rise with time: what was read
late from a socket is then in its right place.

    twice stored   one text in two places (deduplication)
    early          before its delay, its backoff or its nack's delay was over
    double         while somebody else's lease had certainly not ended
    overtaken      of a key: a later number before an earlier one was over with, or an earlier one after a later one
    tries          more attempts than allowed, a death before the last one, a death that did not happen, two deaths
    resurrected    after an ack, or a death, was confirmed
    held           on_dead hold: past a message that died; on_dead follow: past one that took its followers along
    lost           confirmed, and neither acked nor dead in the end
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.batch import MessageView

__all__ = ["Entry", "Given", "History", "Sent", "TopicRules"]

NEVER = 1 << 63


@dataclass(frozen=True)
class TopicRules:
    """How a topic was made."""

    name: str
    on_dead: str
    max_retries: int
    lease_ns: int
    backoff_ns: int
    groups: tuple[str, ...]


@dataclass(slots=True)
class Sent:
    """A message as its producer sent it."""

    topic: str
    text: str
    sent_ns: int
    delay_ns: int = 0
    confirmed_ns: int = 0
    place: tuple[int, int, int] | None = None  # partition, offset, id

    @property
    def key(self) -> str:
        return self.text.rpartition(":")[0]

    @property
    def number(self) -> int:
        return int(self.text.rpartition(":")[2])


@dataclass(slots=True)
class Given:
    """One delivery, and what its consumer did about it."""

    lease_id: int
    attempt: int
    consumer: str
    asked_ns: int  # the lease was not granted before
    came_ns: int
    holds_until_ns: int
    verb: str = ""
    verb_ns: int = NEVER  # when it was sent
    answered_ns: int = NEVER  # when it was confirmed
    again_ns: int = 0  # nack: not before
    late: bool = False  # its time was over, or may have been, when the verb was sent
    gone_ns: int = NEVER  # the connection was given up

    @property
    def sure(self) -> bool:
        return self.answered_ns != NEVER


@dataclass(slots=True)
class Entry:
    """One message in one group."""

    sent: Sent
    given: list[Given] = field(default_factory=list)
    dead: list[tuple[str, int]] = field(default_factory=list)  # reason, attempts

    def by_lease(self) -> list[Given]:
        return sorted(self.given, key=lambda given: given.lease_id)

    @property
    def acked_ns(self) -> int:
        """When the first ack was sent that may have counted."""
        return min((g.verb_ns for g in self.given if g.verb == "ack"), default=NEVER)

    @property
    def surely_acked(self) -> bool:
        return any(g.verb == "ack" and g.sure for g in self.given)


class History:
    """See the head of this file."""

    def __init__(self, topics: Iterable[TopicRules]) -> None:
        self.topics = {rules.name: rules for rules in topics}
        self.sent: dict[tuple[str, str], Sent] = {}
        self.entries: dict[tuple[str, str], dict[str, Entry]] = defaultdict(dict)  # topic, group -> text ->
        self.letters: Counter[tuple[str, str, str]] = Counter()
        self.follow_order: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()

    def _violate(self, kind: str, text: str) -> None:
        self.violations.append(f"{kind}: {text}")

    # -- as it happens -----------------------------------------------------------------------------------------------

    def sends(self, sent: Sent) -> None:
        self.sent[sent.topic, sent.text] = sent

    def confirms(self, sent: Sent, place: tuple[int, int, int], now_ns: int) -> None:
        self.counts["confirmed"] += not sent.confirmed_ns
        sent.confirmed_ns = sent.confirmed_ns or now_ns
        self._lies_at(sent, place, "was confirmed")

    def _lies_at(self, sent: Sent, place: tuple[int, int, int], how: str) -> None:
        if sent.place is None:
            sent.place = place
        elif sent.place != place:
            self._violate("twice stored", f"{sent.topic} {sent.text} {how} at {place}, and at {sent.place} before")

    def gives(self, topic: str, group: str, text: str, place: tuple[int, int, int], given: Given) -> Entry | None:
        """A delivery came."""
        self.counts["delivered"] += 1
        sent = self.sent.get((topic, text))
        if sent is None:
            self._violate("unknown", f"{topic} {text!r} was delivered and never published")
            return None
        self._lies_at(sent, place, "was delivered")
        entry = self.entries[topic, group].get(text)
        if entry is None:
            entry = self.entries[topic, group][text] = Entry(sent)
        if given.came_ns < sent.sent_ns + sent.delay_ns:
            early_ms = (sent.sent_ns + sent.delay_ns - given.came_ns) / 1e6
            self._violate("early", f"{topic}/{group} {text}: {early_ms:.1f} ms before its delay was over")
        entry.given.append(given)
        return entry

    def dies(self, letter: MessageView) -> None:
        """A dead letter was read."""
        headers = {name: str(value) for name, value in letter.headers.items()}
        topic, group = headers["headrace-dead-topic"], headers["headrace-dead-group"]
        text = bytes(letter.value).decode()
        sent = self.sent.get((topic, text))
        if sent is None:
            self._violate("unknown", f"{text!r} is dead and was never published to {topic}")
            return
        self.letters[topic, group, text] += 1
        self.counts["dead"] += 1
        entry = self.entries[topic, group].setdefault(text, Entry(sent))
        entry.dead.append((headers["headrace-dead-reason"], int(headers["headrace-dead-attempts"])))
        self.follow_order[topic, group].append(text)

    # -- in the end --------------------------------------------------------------------------------------------------

    def judge(self, *, held_back: bool = True) -> list[str]:
        """Everything that was not as it has to be."""
        for (topic, group), entries in self.entries.items():
            rules = self.topics[topic]
            keys: dict[str, list[Entry]] = defaultdict(list)
            for entry in entries.values():
                self._judge_entry(rules, group, entry)
                if not entry.sent.key.startswith("-"):
                    keys[entry.sent.key].append(entry)
            for key, those in keys.items():
                self._judge_key(rules, group, key, sorted(those, key=lambda entry: entry.sent.number))
        for (topic, group, text), count in self.letters.items():
            if count > 1:
                self._violate("tries", f"{topic}/{group} {text} died {count} times")
        if held_back:
            self._judge_missing()
        return self.violations

    def _judge_entry(self, rules: TopicRules, group: str, entry: Entry) -> None:
        name = f"{rules.name}/{group} {entry.sent.text}"
        before: Given | None = None
        released = False
        for given in entry.by_lease():
            if given.attempt > rules.max_retries + 1:
                self._violate("tries", f"{name}: attempt {given.attempt}, {rules.max_retries + 1} are allowed")
            if before is not None:
                self._judge_again(name, before, given, released)
            released = given.verb == "release"
            before = given
        if entry.surely_acked and entry.dead:
            self._violate("resurrected", f"{name} is dead ({entry.dead}), and its ack was confirmed")
        for reason, attempts in entry.dead:
            if reason == "max_retries" and attempts != rules.max_retries + 1:
                self._violate("tries", f"{name} died of max_retries after {attempts}, not {rules.max_retries + 1}")
            if reason not in ("max_retries", "rejected", "followed"):
                self._violate("tries", f"{name} died of {reason}")
            if reason == "rejected" and not any(g.verb == "reject" for g in entry.given):
                self._violate("tries", f"{name} is dead as rejected, and nobody rejected it")
        last = before
        spent = last is not None and last.verb == "nack" and last.sure and last.attempt == rules.max_retries + 1
        if spent and not entry.dead:
            self._violate("tries", f"{name}: the last of its attempts was nacked, and it is not dead")
        if any(g.verb == "reject" and g.sure for g in entry.given) and not entry.dead:
            self._violate("lost", f"{name}: its rejection was confirmed, and it is not among the dead letters")

    def _judge_again(self, name: str, before: Given, given: Given, released: bool) -> None:
        if before.lease_id == given.lease_id:
            self._violate("double", f"{name} came twice under lease {given.lease_id}")
            return
        if before.verb in ("ack", "reject") and before.answered_ns < given.asked_ns:
            self._violate(
                "resurrected",
                f"{name} came under lease {given.lease_id}, its {before.verb} under {before.lease_id} was confirmed",
            )
        if given.attempt <= before.attempt and not (released and given.attempt == before.attempt):
            self._violate("tries", f"{name}: attempt {given.attempt} after attempt {before.attempt}")
        ended_ns = min(before.holds_until_ns, before.gone_ns)
        if before.verb_ns != NEVER and before.verb != "ack":
            ended_ns = min(ended_ns, max(before.verb_ns, before.again_ns))
        if given.came_ns < ended_ns:
            kind = "early" if before.again_ns and given.came_ns >= before.verb_ns else "double"
            ms = (ended_ns - given.came_ns) / 1e6
            self._violate(kind, f"{name}: {ms:.1f} ms before its lease or its wait was over: {before}, then {given}")

    def _judge_key(self, rules: TopicRules, group: str, key: str, entries: list[Entry]) -> None:
        highest_lease, latest = -1, ""
        died_ns, died = NEVER, ""
        for entry in entries:
            name = f"{rules.name}/{group} {entry.sent.text}"
            given = entry.by_lease()
            if given and given[0].lease_id <= highest_lease:
                self._violate(
                    "overtaken", f"{name} under lease {given[0].lease_id}, while {latest} came under {highest_lease}"
                )
            for one in given:
                if one.came_ns > died_ns:
                    self._violate("held", f"{name} was delivered after {died} of its key had died")
                    break
            if given and given[-1].lease_id > highest_lease:
                highest_lease, latest = given[-1].lease_id, entry.sent.text
            if rules.on_dead == "hold":
                rejected = min((g.answered_ns for g in given if g.verb == "reject" and g.sure), default=NEVER)
                if rejected < died_ns:
                    died_ns, died = rejected, entry.sent.text

    def _judge_missing(self) -> None:
        held = self._held_keys()
        for (topic, text), sent in self.sent.items():
            if not sent.confirmed_ns:
                continue
            for group in self.topics[topic].groups:
                entry = self.entries[topic, group].get(text)
                if entry is not None and (entry.dead or entry.acked_ns != NEVER):
                    continue
                if held.get((topic, group, sent.key), NEVER) < sent.number:
                    continue
                self._violate(
                    "lost",
                    f"{topic}/{group} {text} was confirmed, and neither acked nor dead: {entry and entry.by_lease()}",
                )

    def _held_keys(self) -> dict[tuple[str, str, str], int]:
        """Where on_dead is hold: the number behind which a key waits."""
        held: dict[tuple[str, str, str], int] = {}
        for (topic, group), entries in self.entries.items():
            if self.topics[topic].on_dead != "hold":
                continue
            for entry in entries.values():
                if entry.dead:
                    place = (topic, group, entry.sent.key)
                    held[place] = min(held.get(place, NEVER), entry.sent.number)
        return held
