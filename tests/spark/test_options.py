"""Every mistake in an option is named, with what would be right; what is right becomes what the Kafka source means."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidArgument
from headrace.spark.options import EARLIEST, LATEST, Bound, ReadOptions, WriteOptions

HERE = {"server": "headrace://h:7420", "subscribe": "orders"}


def parse(streaming: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.parse({**HERE, **given}, streaming=streaming)


def test_names_are_taken_in_any_case_and_lists_with_blanks() -> None:
    options = ReadOptions.parse(
        {"SERVER": "headrace://h", "Subscribe": "a, b ,c", "MAXOFFSETSPERTRIGGER": "7"}, streaming=True
    )
    assert options.topics == ("a", "b", "c")
    assert options.rows_max == 7


def test_a_batch_reads_everything_and_a_stream_what_is_new() -> None:
    assert parse().start == Bound(everywhere=EARLIEST)
    assert parse().end == Bound(everywhere=LATEST)
    assert parse(streaming=True).start == Bound(everywhere=LATEST)


def test_places_and_times_may_be_said_for_each_partition_and_topic() -> None:
    assert parse(startingOffsets='{"orders": {"0": 17, "1": -2}}').start == Bound(offsets={"orders": {0: 17, 1: -2}})
    assert parse(startingTimestamp="1000").start == Bound(time_ns=1_000_000_000)
    assert parse(startingTimestamp="1970-01-01T00:00:02").start == Bound(time_ns=2_000_000_000)
    assert parse(endingTimestamp="1970-01-01T01:00:02+01:00").end == Bound(time_ns=2_000_000_000)
    assert parse(startingTimestamp='{"orders": 1}').start == Bound(times_ns={"orders": 1_000_000})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxOffsetPerTrigger": "7"}, "did you mean maxOffsetsPerTrigger"),
        ({"zzz": "7"}, "there are server"),
        ({"subscribePattern": "x"}, "more than one of subscribe"),
        ({"subscribe": ""}, "none of subscribe"),
        ({"maxOffsetsPerTrigger": "many"}, "must be a whole number"),
        ({"maxOffsetsPerTrigger": "0"}, "must be 1 or more"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay = 'soon'"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger = 'much'"),
        ({"startingOffsets": "yesterday"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"orders": 3}'}, "must be earliest, latest or JSON"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "one of them says where"),
        ({"startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"startingOffsets": "group"}, "needs groupId"),
        ({"view": "tail"}, "must be one of log, queue"),
        ({"table": "rows"}, "must be one of events"),
        ({"view": "queue", "groupId": "g"}, "use readStream"),
        ({"data_dir": "/d"}, "give one of the options server"),
        ({"server": ""}, "give one of the options server"),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"view": "queue"}, "needs one topic in subscribe, and groupId"),
        ({"view": "queue", "groupId": "g", "subscribe": "a,b"}, "needs one topic"),
        ({"view": "queue", "groupId": "g", "table": "events"}, "leave the option table out"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
    ],
)
def test_a_mistake_of_a_stream_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse(streaming=True, **given)


@pytest.mark.parametrize("assign", ["[]", "{}", "orders", '{"orders": 1}', '{"orders": ["x"]}'])
def test_an_assignment_that_is_none_is_named(assign: str) -> None:
    with pytest.raises(InvalidArgument, match="must be JSON like"):
        ReadOptions.parse({"server": "headrace://h", "assign": assign}, streaming=False)


def test_the_options_of_a_writer_are_checked_too() -> None:
    assert WriteOptions.parse({"server": "headrace://h", "topic": "t"}).topic == "t"
    with pytest.raises(InvalidArgument, match="did you mean topic"):
        WriteOptions.parse({"server": "headrace://h", "topics": "t"})
    with pytest.raises(InvalidArgument, match="at most 4096"):
        WriteOptions.parse({"server": "headrace://h", "batchRows": "100000"})


def test_a_token_is_not_part_of_what_an_error_might_show() -> None:
    assert "secret" not in repr(parse(token="secret").place)
