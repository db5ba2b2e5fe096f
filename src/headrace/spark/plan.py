"""What is to be read: topics by name or pattern, each end as offsets, the way between them in splits.

A place that does not exist is an error that names what exists; with ``failOnDataLoss=false`` what is gone becomes a
``lost`` stretch of a split, and later a row that says so. Nothing is left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pyspark.sql.datasource import InputPartition

from headrace.errors import InvalidArgument, NotAllowed, Unauthenticated, UnknownTopic
from headrace.spark.offsets import Places
from headrace.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from headrace.spark.reach import Reach

__all__ = ["Segment", "Split", "Standing", "chosen", "ends", "made_again", "segments", "splits", "standings", "starts"]


@dataclass(frozen=True)
class Standing:
    """Where a partition begins and ends, and perhaps the first offset at a time."""

    start: int
    end: int
    at: int | None = None
    within: int | None = None


@dataclass(frozen=True)
class Segment:
    """A sealed file of a partition."""

    uri: str
    first: int
    end: int
    size_bytes: int
    raw_bytes: int

    def rows_within(self, offset: int, size_bytes: int) -> int:
        """How far from an offset so many bytes of messages go, as they were published and on the average."""
        return min(self.end - offset, size_bytes * (self.end - self.first) // max(1, self.raw_bytes))


@dataclass
class Split(InputPartition):
    """What one task reads: offsets of one partition, the first ``lost`` of them gone."""

    topic: str
    partition: int
    first: int
    end: int
    lost: int = 0
    files: tuple[Segment, ...] = ()

    def __init__(
        self,
        topic: str,
        partition: int,
        first: int,
        end: int,
        lost: int = 0,
        files: tuple[Segment, ...] = (),
    ) -> None:
        super().__init__(None)
        self.topic = topic
        self.partition = partition
        self.first = first
        self.end = end
        self.lost = lost
        self.files = files


Standings = dict[str, dict[int, Standing]]


def chosen(reach: Reach, options: ReadOptions) -> list[str]:
    """The topics that are asked for, in order."""
    if options.pattern is not None:
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise InvalidArgument(f"option subscribePattern = {options.pattern!r}: {error}") from None
        return sorted(name for name in _names(reach) if pattern.fullmatch(name))
    wanted = sorted(options.assigned or options.topics)
    for topic in wanted:
        try:
            reach.call("topic.offsets", topic=topic)
        except UnknownTopic:
            raise UnknownTopic(
                f"topic {topic!r} does not exist in namespace {options.place.namespace!r}{_hint(reach, topic)}"
            ) from None
    return wanted


def _names(reach: Reach) -> list[str]:
    return [str(info["topic"]) for info in reach.call("topic.list")]


def _hint(reach: Reach, topic: str) -> str:
    try:
        known = _names(reach)
    except (NotAllowed, Unauthenticated):
        return ""  # who may see only some topics is not told about others
    close = get_close_matches(topic, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known)[:20]) or 'none'}"


def standings(
    reach: Reach,
    options: ReadOptions,
    topics: Iterable[str],
    *,
    times_ns: Mapping[str, int] | None = None,
    budget: tuple[Places, int] | None = None,
) -> Standings:
    """Where the topics' partitions stand; ``times_ns``: also at these times; ``budget``: also how far bytes go."""
    found: Standings = {}
    for topic in topics:
        arguments: dict[str, Any] = {}
        if times_ns is not None and topic in times_ns:
            arguments["time_ns"] = times_ns[topic]
        if budget is not None:
            places, bytes_max = budget
            arguments["from_offsets"] = {str(index): place for index, place in places.get(topic, {}).items()}
            arguments["bytes_max"] = bytes_max
        parts = reach.call("topic.offsets", topic=topic, **arguments)["partitions"]
        found[topic] = {
            part["partition"]: Standing(part["start"], part["end"], part.get("at"), part.get("within"))
            for part in parts
        }
        if options.include_deleted:
            found[topic] = _with_archive(reach, topic, found[topic], arguments.get("time_ns"))
        wanted = options.assigned.get(topic) if options.assigned else None
        if wanted is not None:
            missing = [index for index in wanted if index not in found[topic]]
            if missing:
                raise InvalidArgument(
                    f"option assign: topic {topic!r} has no partition {missing[0]}; it has {len(parts)},"
                    f" from 0 to {len(parts) - 1}"
                )
            found[topic] = {index: found[topic][index] for index in wanted}
    return found


def _with_archive(reach: Reach, topic: str, found: dict[int, Standing], time_ns: int | None) -> dict[int, Standing]:
    """The same with what retention let go of and the archive has."""
    files = segments(reach, topic, archived=True)
    wider = {}
    for index, standing in found.items():
        start = min([standing.start, *(file.first for file in files.get(index, ()))])
        at = standing.at
        if time_ns is not None:
            told, batches = reach.messages(
                "read", topic=topic, partition=index, from_time_ns=time_ns, limit=1, include_deleted=True
            )
            at = batches[0].base_offset if batches else told["parts"][0]["end_offset"]
        wider[index] = Standing(start, standing.end, at, standing.within)
    return wider


def starts(reach: Reach, options: ReadOptions, topics: Sequence[str]) -> Places:
    """The first offset of each partition that is read."""
    if options.start_group:
        return _group_starts(reach, options, topics)
    return _bound(reach, options, topics, options.start, "starting", EARLIEST)


def ends(reach: Reach, options: ReadOptions, topics: Sequence[str]) -> Places:
    """The offset after the last of each partition that is read."""
    return _bound(reach, options, topics, options.end, "ending", LATEST)


def _bound(
    reach: Reach, options: ReadOptions, topics: Sequence[str], bound: Bound, which: str, otherwise: int
) -> Places:
    for topic in {**bound.offsets, **bound.times_ns}:
        if topic not in topics:
            raise InvalidArgument(f"option {which}… names topic {topic!r}, which is not read; read are {topics}")
    times_ns = dict(bound.times_ns)
    if bound.time_ns is not None:
        times_ns = dict.fromkeys(topics, bound.time_ns)
    found = standings(reach, options, topics, times_ns=times_ns)
    places: Places = {}
    for topic, parts in found.items():
        given = bound.offsets.get(topic, {})
        for index in given:
            if index not in parts:
                raise InvalidArgument(
                    f"option {which}Offsets: topic {topic!r} has no partition {index}; it has {sorted(parts)}"
                )
        places[topic] = {
            index: _place(topic, index, standing, given.get(index, bound.everywhere), which, otherwise, options)
            for index, standing in parts.items()
        }
    return places


def _place(
    topic: str,
    index: int,
    standing: Standing,
    wanted: int | None,
    which: str,
    otherwise: int,
    options: ReadOptions,
) -> int:
    if wanted is None:
        wanted = standing.at if standing.at is not None else otherwise
    if wanted == EARLIEST:
        return standing.start
    if wanted == LATEST:
        return standing.end
    if wanted > standing.end:
        raise InvalidArgument(
            f"option {which}Offsets: {topic!r} partition {index} ends at {standing.end}, {wanted} is beyond; there are"
            f" {standing.start} to {standing.end}"
        )
    if wanted < standing.start and options.fail_on_data_loss:
        raise InvalidArgument(
            f"option {which}Offsets: {topic!r} partition {index} begins at {standing.start}, {wanted} is no longer"
            f" there (retention); there are {standing.start} to {standing.end}. failOnDataLoss=false gives a row that"
            " says what is gone"
        )
    return wanted


def _group_starts(reach: Reach, options: ReadOptions, topics: Sequence[str]) -> Places:
    """Where a group of the broker stands: the first message of each partition that it has not settled."""
    found = standings(reach, options, topics)
    for topic, parts in found.items():
        places = reach.call("group.position", topic=topic, group=options.group)["offsets"] or {}
        for index, standing in parts.items():
            place = int(places.get(str(index), standing.start))
            parts[index] = Standing(min(max(place, standing.start), standing.end), standing.end)
    return {topic: {index: part.start for index, part in parts.items()} for topic, parts in found.items()}


def segments(reach: Reach, topic: str, *, archived: bool = False) -> dict[int, list[Segment]]:
    """The sealed files of a topic by partition, in order; none where the broker seals nothing."""
    found: dict[int, list[Segment]] = {}
    for each in reach.call("log.segments", topic=topic, include_deleted=archived)["segments"]:
        found.setdefault(each["partition"], []).append(
            Segment(each["uri"], each["first"], each["end"], each["size_bytes"], each["raw_bytes"])
        )
    for files in found.values():
        files.sort(key=lambda file: file.first)
    return found


def made_again(topic: str, index: int, end: int, reached: int) -> InvalidArgument:
    """The error of a log that is shorter than it was."""
    return InvalidArgument(
        f"{topic!r} partition {index} ends at {end}, but {reached} was reached before: the topic was deleted and made"
        " again; start over with a new checkpoint"
    )


def splits(
    start: Mapping[str, Mapping[int, int]],
    end: Mapping[str, Mapping[int, int]],
    standing: Standings,
    options: ReadOptions,
    sealed: Mapping[str, Mapping[int, Sequence[Segment]]] | None = None,
) -> list[Split]:
    """The way from start to end, for as many tasks as the options ask for."""
    wholes: list[Split] = []
    for topic, parts in sorted(end.items()):
        for index, last in sorted(parts.items()):
            known = standing[topic][index]
            first = start.get(topic, {}).get(index, known.start)
            lost = max(0, min(known.start, last) - first)
            if lost and options.fail_on_data_loss:
                raise InvalidArgument(
                    f"{lost} messages of {topic!r} partition {index} are gone: {first} to {known.start} were let go of"
                    f" by retention, there are {known.start} to {known.end}; failOnDataLoss=false goes on and gives a"
                    " row that says what is gone"
                )
            if known.end < first:
                raise made_again(topic, index, known.end, first)
            if first < last:
                files = (sealed or {}).get(topic, {}).get(index, ())
                wholes.append(Split(topic, index, first, last, lost, tuple(files)))
    rows = sum(split.end - split.first for split in wholes)
    most = options.split_rows
    if options.partitions_min > 1:
        most = min(most, max(1, -(-rows // options.partitions_min)))
    return [part for split in wholes for part in _cut(split, most)]


def _cut(split: Split, most: int) -> list[Split]:
    count = -(-(split.end - split.first) // most)
    if count <= 1:
        return [_with_files(split, split.first, split.end)]
    step = -(-(split.end - split.first) // count)
    return [_with_files(split, first, min(first + step, split.end)) for first in range(split.first, split.end, step)]


def _with_files(split: Split, first: int, end: int) -> Split:
    lost = max(0, min(end, split.first + split.lost) - first)
    files = tuple(file for file in split.files if file.first < end and first < file.end)
    return Split(split.topic, split.partition, first, end, lost, files)
