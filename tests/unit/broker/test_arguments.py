"""Every argument of every administrative call: what it may be is looked at before anything is done."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headrace.broker.arguments import TAKES, Maybe
from headrace.errors import HeadraceError, InvalidArgument
from unit.broker.harness import World

RIGHT: dict[str, Any] = {
    "topic": "orders",
    "group": "billing",
    "namespace": "default",
    "id": 1,
    "offsets": {"0": 0},
    "producer_ids": [1],
    "reader": "spark",
    "after": 0,
    "most": 1,
    "batch": 1,
    "partition": 0,
    "runs": [[0, 1]],
    "upto": 1,
    "by_ns": 1,
}
"""What calls need; the others have defaults."""
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 5, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 70, 10**5000, 1e-300, 1e300, 0.5,
    float("nan"), float("inf"), "", "x", "\ud800", "²", "9" * 5000, "x" * 5000, b"x", b"\xff", b"x" * 5000, [], [1],
    ["x"], [None], [[1]], [[0, 1 << 62, 1 << 62]], [[0, -1, 1]], {}, {"x": 1}, {5: 1}, {"0": "x"}, {"0": -1},
    {"²": 1}, {0: (1 << 63) - 1}, {5: 5}, {"9" * 5000: 1}, {"offsets": 5}, {"offsets": {"0": 1 << 70}}, {"time_ns": -1},
    {"time_ns": True}, {"time_ns": 1 << 70}, {"lease": object()}, {"lease": [1]}, {"filter": {"headers": {"a": print}}},
    {"filter": {"headers": "\ud800"}}, {"retry": 5}, {"partitions": 10**5000}, {"ids": 5}, {"ids": [[]]},
    {"ids": [1 << 70]}, {"reason": "foo"}, {"reason": 5}, {"header": 5}, {"header": {"a": 5}}, {"header": {5: "a"}},
    {"runs": 5}, {"runs": [[0, 0, 1 << 62]]}, {"runs": [[0, 0]]}, {"from_time_ns": "x"}, {"from_time_ns": -1},
    {"to_time_ns": (1 << 63) - 1}, {"min_attempts": "x"}, {"key_prefix": 5}, {"outcome": "x"}, {"group": 5}, object(),
    print, iter([1]), {1, 2}, frozenset([1]), range(3), (1, 2), bytearray(b"x"), memoryview(b"x"),
)  # fmt: skip


def wanted(world: World, method: str) -> dict[str, Any]:
    known = world.port.administration._calls[method]
    return {name: RIGHT[name] for name in known.required}


@pytest.fixture
def busy(world: World) -> World:
    """A broker with something of everything."""
    world.publish("orders", [b"a", b"b", b"c"])
    world.call("group.create", topic="orders", group="billing")
    world.settle("orders", world.lease("orders", 1), "reject")
    return world


def test_the_table_names_the_calls_that_there_are_and_their_arguments(world: World) -> None:
    calls = world.port.administration._calls
    assert set(calls) == set(TAKES)
    for method, known in calls.items():
        parameters = inspect.signature(known.call).parameters
        assert set(TAKES[method]) == set(parameters), method
        for name, kind in TAKES[method].items():
            assert isinstance(kind, Maybe) >= (parameters[name].default is None), (
                f"{method} {name}: None is its default"
            )


@pytest.mark.parametrize("method", TAKES)
def test_what_is_not_what_a_call_takes_is_refused_by_its_name(busy: World, method: str) -> None:
    before = busy.journal.end_position
    for name in TAKES[method]:
        for wrong in ([[[]]], object()):
            with pytest.raises(InvalidArgument) as refused:
                busy.call(method, **{**wanted(busy, method), name: wrong})
            assert refused.value.message.startswith(f"{method}: {name}"), refused.value.message
            assert "must be" in refused.value.message or "; " in refused.value.message
    with pytest.raises(InvalidArgument, match=f"{method} has no argument 'colour'"):
        busy.call(method, **wanted(busy, method), colour=1)
    for name in wanted(busy, method):
        given = wanted(busy, method)
        del given[name]
        with pytest.raises(InvalidArgument, match=f"{method} needs the argument '{name}'"):
            busy.call(method, **given)
    assert busy.journal.end_position == before


@pytest.mark.parametrize("method", TAKES)
def test_whatever_an_argument_is_the_answer_is_a_result_or_a_typed_refusal(busy: World, method: str) -> None:
    for name in TAKES[method]:
        for value in STRANGE:
            try:
                busy.stepped(method, **{**wanted(busy, method), name: value})
            except HeadraceError as refused:
                assert refused.code, (name, value)
                assert len(refused.message) < 2_000
    assert busy.call("namespace.list"), "and the broker goes on"


@pytest.mark.parametrize("method", [5, None, [], {}, object()])
def test_a_method_that_is_no_name_is_refused(world: World, method: Any) -> None:
    with pytest.raises(InvalidArgument, match="there is no call"):
        world.call(method)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("group.pause", {"group": "g", "by": 6}, "group.pause: by is 6; it must be text of at most 4096 characters"),
        ("group.pause", {"group": "g", "until_ns": "1"}, "group.pause: until_ns is '1'; it must be a whole number"),
        ("dlq.redrive", {"rate": "10"}, "dlq.redrive: rate is '10'; it must be messages a second, a number from"),
        ("dlq.redrive", {"dry_run": "yes"}, "dlq.redrive: dry_run is 'yes'; it must be true or false"),
        ("schedule.cancel", {"tag": 5}, "schedule.cancel: tag is 5; it must be text"),
        ("topic.create", {"settings": 5}, "topic.create: settings is 5; it must be settings by name"),
        ("group.seek", {"group": "g", "stops": [1]}, "group.seek: stops is [1]; it must be offsets by partition"),
        ("dlq.list", {"where": {"ids": 5}}, "dlq.list: where: ids is 5; it must be a list of at most"),
        (
            "dlq.list",
            {"where": {"reason": "foo"}},
            "dlq.list: where: reason is 'foo'; it must be one of rejected, max_retries, total_timeout, followed",
        ),
        ("topic.show", {"topic": 5}, "topic.show: topic is 5; it must be the name of a topic, as text"),
    ],
)
def test_a_refusal_says_what_would_be_right(world: World, method: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        world.call(method, **{"topic": "orders", **arguments})
    assert refused.value.message.startswith(message)
