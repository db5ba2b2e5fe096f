"""``headrace publish``: one message, or one a line of what is piped in.

Lines travel in batches, as many as each read brought, several under way at a time (``headrace.cli.sender``, which also
says where it stopped).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.output import Output, Progress, count
from headrace.cli.place import Broker, Place, located
from headrace.cli.sender import Lines, Sender
from headrace.cli.values import LIFETIME, MOMENT, PRIORITY, SPAN, Pair
from headrace.errors import HeadraceError, InvalidArgument, PayloadTooLarge
from headrace.limits import BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from headrace.batch import Message

__all__ = ["publish"]

_NORMAL: Final = 5


@click.command()
@click.argument("topic")
@click.argument("value", metavar="[VALUE|-]", required=False)
@click.option("--lines", is_flag=True, help="Each line of the input is a message.")
@click.option("--json-lines", is_flag=True, help="Each line is a message as `consume --json` prints it.")
@click.option("--key", metavar="TEXT", help="Decides the partition and the order.")
@click.option("--header", "headers", type=Pair("name=value"), multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--priority", type=PRIORITY, default=_NORMAL, metavar="0-9|high|normal|low", help="0 first (normal).")
@click.option("--delay", type=SPAN, metavar="SPAN", help="Due after this time, such as 5m.")
@click.option("--deliver-at", type=MOMENT, metavar="TIME", help="Due at this time, such as 2030-01-31T12:00:00Z.")
@click.option("--ttl", type=LIFETIME, metavar="SPAN", help="Not delivered later than this after it is due.")
@click.option("--dedup-id", metavar="TEXT", help="A second message with it is not stored.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="This partition, whatever the key.")
@located
def publish(
    place: Place,
    topic: str,
    value: str | None,
    lines: bool,
    json_lines: bool,
    partition: int | None,
    headers: tuple[tuple[str, str], ...],
    **given: Any,
) -> None:
    """Publish VALUE, or what is piped in: as one message, or line by line."""
    from headrace.calls import BY_KEY

    if given["delay"] is not None and given["deliver_at"] is not None:
        raise click.UsageError("--delay and --deliver-at are two times; give one of them")
    piped = value is None or value == "-"
    if piped and value is None and sys.stdin.isatty():
        raise click.UsageError("nothing to publish: give a VALUE, or pipe something in (VALUE - reads the terminal)")
    if not piped and (lines or json_lines):
        raise click.UsageError("--lines reads what is piped in; leave VALUE out")
    fields = _fields(given, headers)
    if json_lines and fields:
        raise click.UsageError(f"with --json-lines each line says its own; leave out {', '.join(fields)}")
    if lines and "dedup_id" in fields:
        raise click.UsageError("--dedup-id with --lines would store one line only; use --json-lines with dedup_id")
    with place.open(create=True) as broker:
        sender = Sender(broker, topic, BY_KEY if partition is None else partition, place.output)
        if json_lines:
            _send_all(sender, _json_batches(broker))
        elif lines:
            _send_all(sender, _line_batches(broker, fields))
        else:
            sender.send_one(_whole_input(broker) if piped else _encoded(value or ""), fields)


def _fields(given: dict[str, Any], headers: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """What was said about each message, as a batch's message has it."""
    fields: dict[str, Any] = {}
    for name, target in (("delay", "delay_ns"), ("deliver_at", "deliver_at_ns"), ("ttl", "ttl_ns")):
        if given[name] is not None:
            fields[target] = given[name]
    for name in ("key", "dedup_id"):
        if given[name] is not None:
            fields[name] = _encoded(given[name])
    if given["priority"] != _NORMAL:
        fields["priority"] = given["priority"]
    if headers:
        fields["headers"] = dict(headers)
    return fields


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _whole_input(broker: Broker) -> bytes:
    with broker.interruptible():
        content = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
    if len(content) > MESSAGE_BYTES_MAX:
        raise PayloadTooLarge(f"the input has more than {MESSAGE_BYTES_MAX} bytes; did you mean --lines?")
    return content


def _input(broker: Broker) -> Iterator[list[bytes]]:
    from headrace.cli.lines import read_lines

    found = read_lines(sys.stdin.buffer)
    while True:
        with broker.interruptible():
            lines = next(found, None)
        if lines is None:
            return
        yield lines


def _line_batches(broker: Broker, fields: dict[str, Any]) -> Iterator[Lines]:
    from headrace.batch import Message, encode, encode_columns
    from headrace.cli.lines import portions

    number = 1
    for lines in _input(broker):
        for part in portions(lines, [len(line) for line in lines], BATCH_MESSAGES_MAX):
            batch = encode([Message(line, **fields) for line in part]) if fields else encode_columns(part)
            yield Lines(batch, range(number, number + batch.count))
            number += batch.count


def _json_batches(broker: Broker) -> Iterator[Lines]:
    from headrace.cli.lines import encoded, message_of, portions

    number = 0
    for lines in _input(broker):
        messages: list[tuple[int, Message]] = []
        wrong: HeadraceError | None = None
        for line in lines:
            number += 1
            if line.strip():
                try:
                    messages.append((number, message_of(line, number)))
                except InvalidArgument as refused:
                    wrong = refused
                    break
        for part in portions(messages, [len(one.value) for _, one in messages], BATCH_MESSAGES_MAX):
            if part:
                yield from encoded(part)
        if wrong is not None:
            raise wrong


def _send_all(sender: Sender, batches: Iterator[Lines]) -> None:
    try:
        with Progress("published") as progress:
            for lines in sender.readable(batches):
                sender.send(lines)
                progress.at(sender.confirmed)
            sender.finish()
    except KeyboardInterrupt:
        Output.note(sender.stop())
        raise
    if not sender.output.json:
        sender.output.line(f"published {count(sender.confirmed)} to {sender.topic}")
