"""Consumers that come back to a broker that was started anew, and leases no group would grant."""

from __future__ import annotations

import pytest

from headrace.calls import LeasedBatch, Run
from headrace.errors import InvalidArgument
from headrace.journal import Journal
from unit.broker.harness import SECOND, World


@pytest.fixture
def before(world: World) -> tuple[World, list[LeasedBatch]]:
    """Ten messages, of which c1 was leased six in two leases, and c2 one."""
    world.call("topic.create", topic="orders", settings={"ordering": "none", "lease": "1h"})
    world.publish("orders", [b"%d" % n for n in range(10)])
    leased = [*world.lease("orders", 4), *world.lease("orders", 2), *world.lease("orders", 1, consumer="c2")]
    return world, leased


def started_anew(world: World) -> World:
    journal: Journal = world.journal
    return World(journal, world.clock)


def take_back(world: World, held: list[Run], consumer: str = "c1") -> None:
    broker = world.port.broker
    world.port.host.run(lambda: broker.take_back(broker.find_group("default", "orders", "default"), consumer, held))


def leased_offsets(world: World) -> list[int]:
    return sorted(row["offset"] for row in world.call("browse", topic="orders", state="leased"))


def test_what_a_consumer_does_not_hold_is_given_back_uncounted_and_in_its_place(
    before: tuple[World, list[LeasedBatch]],
) -> None:
    world, leased = before
    again = started_anew(world)
    assert leased_offsets(again) == [0, 1, 2, 3, 4, 5, 6]
    first = leased[0].lease_id
    take_back(again, [Run(0, first, 1, 2), Run(0, first + 9, 4, 2), Run(7, first, 0, 1)])
    assert leased_offsets(again) == [1, 2, 6]
    (one, other) = again.lease("orders", 2), again.lease("orders", 2)
    offsets = [offset for each in (*one, *other) for offset in each.batch.offsets()]
    assert offsets == [0, 3, 4, 5]
    assert not any(each.attempts for each in (*one, *other))


def test_what_was_leased_by_this_process_or_by_others_is_left_alone(before: tuple[World, list[LeasedBatch]]) -> None:
    world, _ = before
    take_back(world, [])
    assert leased_offsets(world) == [0, 1, 2, 3, 4, 5, 6]
    again = started_anew(world)
    again.lease("orders", 2)
    take_back(again, [])
    assert leased_offsets(again) == [6, 7, 8]


@pytest.mark.parametrize("lease_ns", [3601 * SECOND, 0, -1])
def test_a_consumer_whose_lease_no_group_would_grant_is_refused_when_it_joins(world: World, lease_ns: int) -> None:
    world.call("topic.create", topic="orders", settings={"max_lease": "1h"})
    with pytest.raises(InvalidArgument, match="max_lease"):
        world.port.consumer("default", "orders", "default", consumer="c", lease_ns=lease_ns)
    assert world.call("group.show", topic="orders", group="default")["consumers"] == []
    world.port.consumer("default", "orders", "default", consumer="c", lease_ns=3600 * SECOND)
