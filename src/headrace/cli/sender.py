"""Lines on their way as batches, several at a time, and where that stopped.

What can be judged here is judged before it is sent: a line larger than the topic takes is never on its way, and
nothing behind it either. For the rest (a topic that is full, a limit that was lowered a moment ago) a batch may be
refused while others are under way behind it; these may be stored. Then nothing more is sent, and

- where none behind it was stored, the refused batch is sent again in smaller parts, until it is in after all or stands
  at the one line that is refused: what fits gets in, in order, and everything before that line is published;
- where some were, or where a batch goes to several partitions and a part of it may be in, the message names the lines
  that are published, those that are not, and those nobody knows about.

So somebody can go on from there without losing a line or publishing one twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from headrace.cli.output import Output, count
from headrace.errors import (
    HeadraceError,
    InvalidArgument,
    LimitExceeded,
    PayloadTooLarge,
    QueueFull,
    QuotaExceeded,
    RequestError,
    RetryLater,
    TimedOut,
)
from headrace.limits import CLIENT_WINDOW

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.calls import Part, Pending
    from headrace.cli.place import Broker

__all__ = ["Lines", "Sender"]

_SMALLER_MAY_DO: Final = (PayloadTooLarge, InvalidArgument, LimitExceeded, QueueFull, QuotaExceeded)
"""Refusals that may be about some messages of a batch only."""


class Lines(NamedTuple):
    """A batch, and the number of the line that each of its messages is."""

    batch: Batch
    numbers: Sequence[int]

    def part(self, first: int, end: int) -> Lines:
        if (first, end) == (0, self.batch.count):
            return self
        return Lines(self.batch.slice(first, end), self.numbers[first:end])

    @property
    def text(self) -> str:
        return _span(self.numbers[0], self.numbers[-1])


class _Takes(NamedTuple):
    """What a topic takes, and how many partitions it has; 0: not known, or no limit."""

    message_bytes: int = 0
    depth: int = 0
    partitions: int = 0


class Sender:
    """See the head of this file."""

    def __init__(self, broker: Broker, topic: str, partition: int, output: Output) -> None:
        self.topic = topic
        self.output = output
        self.confirmed = 0
        self._broker = broker
        self._partition = partition
        self._takes: _Takes | None = None
        self._pending: deque[tuple[Pending, Lines]] = deque()

    def send_one(self, value: bytes, fields: dict[str, Any]) -> None:
        from headrace.batch import Message, encode

        batch = encode([Message(value, **fields)])
        with self._broker.hints(self.topic):
            parts = self._broker.port.publish(self._broker.namespace, self.topic, self._partition, batch)
        self._tell(parts, 1)

    # -- on their way --------------------------------------------------------------------------------------------------

    def readable(self, batches: Iterator[Lines]) -> Iterator[Lines]:
        """The input as far as it can be read; what is wrong with it is told when all before it is published."""
        while True:
            try:
                yield next(batches)
            except StopIteration:
                return
            except HeadraceError as error:
                self.finish()
                raise type(error)(f"{error.message}; {self._before()}, and nothing behind it") from None

    def send(self, lines: Lines) -> None:
        """Begin to publish; waits for the oldest batch when many are under way."""
        takes = self._takes or self._look()
        if takes is None:  # the topic is made by the first batch
            self._begin(lines)
            self.finish()
            return
        batch, whole = lines.batch, lines.batch.count
        end = whole
        if takes.message_bytes and batch.size_bytes > takes.message_bytes:
            sizes = (i for i, value in enumerate(batch.values()) if len(value) > takes.message_bytes)
            end = next(sizes, whole)
        most = takes.depth or whole
        for first in range(0, end, most):
            self._begin(lines.part(first, min(first + most, end)))
        if end < whole:
            self.finish()
            number, size_bytes = lines.numbers[end], len(batch.values()[end])
            raise PayloadTooLarge(
                f"line {number}: a message of {size_bytes} bytes: topic {self.topic!r} takes up to "
                f"{takes.message_bytes} (max_message_size); {self._up_to(number)}"
            )

    def finish(self) -> None:
        """Wait until all that is under way is published."""
        while self._pending:
            self._finish_oldest()

    def stop(self) -> str:
        """Somebody has had enough: wait for what is under way, and say what became of it."""
        try:
            self.finish()
        except HeadraceError as error:
            return error.message
        return f"published {count(self.confirmed)}"

    def _look(self) -> _Takes | None:
        """What the topic takes; None while there is no topic."""
        from headrace.config import parse_size_bytes

        try:
            info = self._broker.port.call("topic.show", namespace=self._broker.namespace, topic=self.topic)
            settings = info["settings"]
            depth = settings["max_depth"]
            self._takes = _Takes(
                parse_size_bytes(settings["max_message_size"]),
                depth if isinstance(depth, int) else 0,
                info["partitions"],
            )
        except HeadraceError as error:
            if error.code == "unknown_topic":
                return None
            self._takes = _Takes()  # whoever may publish may not always look
        return self._takes

    def _begin(self, lines: Lines) -> None:
        while self._pending and (len(self._pending) >= CLIENT_WINDOW or self._has_news()):
            self._finish_oldest()
        self._broker.pause()
        try:
            begun = self._publish(lines)
        except HeadraceError as error:
            self.finish()
            self._refused(error, lines)
        else:
            self._pending.append((begun, lines))

    def _has_news(self) -> bool:
        """Has the oldest been answered? (In a data directory what is refused is refused at once.)"""
        return not self._broker.embedded and self._pending[0][0].done()

    def _publish(self, lines: Lines) -> Pending:
        with self._broker.hints(self.topic):
            return self._broker.port.publish_begin(self._broker.namespace, self.topic, self._partition, lines.batch)

    def _finish_oldest(self) -> None:
        pending, lines = self._pending[0]  # it stays there while Ctrl-C may come
        try:
            parts = self._answer(pending)
        except HeadraceError as error:
            self._pending.popleft()
            self._refused(error, lines)
        else:
            self._pending.popleft()
            self._finished(parts, lines)

    def _answer(self, pending: Pending) -> list[Part]:
        with self._broker.hints(self.topic):
            return pending.result()

    def _finished(self, parts: Sequence[Part], lines: Lines) -> None:
        self.confirmed += lines.batch.count
        if self.output.json:
            self._tell(parts, lines.batch.count)

    def _tell(self, parts: Sequence[Part], size: int) -> None:
        from headrace.client.published import places

        for id_, partition, offset, duplicate in places(parts, size):
            again = ", which was there already" if duplicate else ""
            self.output.value(
                {"id": id_, "partition": partition, "offset": offset, "duplicate": duplicate},
                f"{id_} in {self.topic}, partition {partition}, offset {offset}{again}",
            )

    # -- refused -------------------------------------------------------------------------------------------------------

    def _refused(self, error: HeadraceError, lines: Lines) -> None:
        """A batch was refused, and all before it is published. Returns when it, or what fits of it, is in after all."""
        before = self._before()
        stored: list[Lines] = []
        missing: list[Lines] = []
        unknown: list[Lines] = []
        (missing if self._is_outside(error, lines) else unknown).append(lines)
        while self._pending:
            pending, other = self._pending.popleft()
            try:
                self._finished(self._answer(pending), other)
                stored.append(other)
            except HeadraceError as its_own:
                (missing if self._is_outside(its_own, other) else unknown).append(other)
        if stored or unknown:
            _stopped(error, lines.text, before, stored, missing, unknown)
        for each in missing:
            self._fit(each, error)

    def _is_outside(self, error: HeadraceError, lines: Lines) -> bool:
        """Is it certain that nothing of this is stored?"""
        if not isinstance(error, RequestError | RetryLater) or isinstance(error, TimedOut):
            return False
        one_place = self._partition >= 0 or (self._takes is not None and self._takes.partitions == 1)
        return one_place or lines.batch.count == 1 or lines.batch.key_hashes() is None

    def _fit(self, lines: Lines, error: HeadraceError) -> None:
        """Publish what is taken of these, from the first on; raises what the first of the others is refused with."""
        at, total = 0, lines.batch.count
        most = total
        if not isinstance(error, _SMALLER_MAY_DO):
            self._stop_at(error, lines)
        while at < total:
            part = lines.part(at, min(at + most, total))
            try:
                self._finished(self._answer(self._publish(part)), part)
            except HeadraceError as refused:
                if not self._is_outside(refused, part):
                    _stopped(refused, part.text, self._before(), [], [], [part])
                if most == 1 or not isinstance(refused, _SMALLER_MAY_DO):
                    self._stop_at(refused, part)
                most = max(1, min(most, total - at) // 2)
            else:
                at += part.batch.count

    def _stop_at(self, error: HeadraceError, lines: Lines) -> NoReturn:
        raise type(error)(
            f"{lines.text}: {error.message}; {self._up_to(lines.numbers[0])}", retry_after_ns=error.retry_after_ns
        ) from None

    def _before(self) -> str:
        if not self.confirmed:
            return "nothing before it was published"
        if self.confirmed == 1:
            return "the one message before it is published"
        return f"the {count(self.confirmed)} messages before it are published"

    def _up_to(self, number: int) -> str:
        return f"{self._before()}, and none from line {number} on" if self.confirmed else "nothing was published"


def _stopped(
    error: HeadraceError,
    where: str,
    before: str,
    stored: Sequence[Lines],
    missing: Sequence[Lines],
    unknown: Sequence[Lines],
) -> NoReturn:
    """Say what is in and what is not, where that is not simply everything up to a line."""
    told = [before]
    if stored:
        told.append(f"so are, behind it, {_spans(stored)}")
    if missing:
        told.append(f"{_spans(missing)} are not")
    if unknown:
        told.append(f"whether {_spans(unknown)} are published is not known")
    behind = max(lines.numbers[-1] for lines in (*stored, *missing, *unknown))
    told.append(f"nothing behind line {behind} was sent")
    raise type(error)(f"{where}: {error.message}; {'; '.join(told)}", retry_after_ns=error.retry_after_ns) from None


def _spans(parts: Sequence[Lines]) -> str:
    """Their lines, those that follow each other as one.

    >>> _spans([Lines(None, range(1, 4)), Lines(None, range(4, 6)), Lines(None, [9])])
    'lines 1 to 5, line 9'
    """
    runs: list[tuple[int, int]] = []
    for part in parts:
        first, last = part.numbers[0], part.numbers[-1]
        if runs and runs[-1][1] + 1 == first:
            first = runs.pop()[0]
        runs.append((first, last))
    return ", ".join(_span(first, last) for first, last in runs)


def _span(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
