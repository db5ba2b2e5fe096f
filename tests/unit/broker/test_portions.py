"""Long calls hold nobody up, in either host."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Any

import pytest

from headrace.batch import Message, encode
from headrace.broker.aio import LoopBroker
from headrace.broker.arguments import YesOrNo
from headrace.broker.broker import Broker
from headrace.broker.portions import Portions, Work, portioned
from headrace.calls import BY_KEY, Run, Settle
from headrace.clock import SystemClock
from headrace.errors import Closed, InvalidArgument, UnknownTopic
from headrace.journal import MemoryJournal
from headrace.shard.core import Core
from unit.broker.harness import World


class Long:
    """A call that waits for something outside, twice."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.begun, self.go_on = Event(), Event()

    @portioned
    def long(self, wrong: bool = False) -> Work:
        yield 0
        told = yield self._elsewhere
        if wrong:
            yield self._refused
        return told

    def _elsewhere(self) -> str:
        self.begun.set()
        assert self.go_on.wait(30)
        return "what was elsewhere"

    def _refused(self) -> None:
        raise InvalidArgument("not there")


def test_what_may_block_holds_no_other_thread_up(world: World) -> None:
    long = Long(world.core)
    world.port.administration.add({"long": long.long}, {"long": {"wrong": YesOrNo()}})
    told: list[Any] = []
    caller = Thread(target=lambda: told.append(world.call("long")))
    caller.start()
    assert long.begun.wait(30)
    world.publish("orders", [b"meanwhile"])  # the other call is under way, and this one is not held up
    long.go_on.set()
    caller.join(30)
    assert told == ["what was elsewhere"]


def test_a_refusal_from_elsewhere_is_the_callers(world: World) -> None:
    long = Long(world.core)
    long.go_on.set()
    world.port.administration.add({"long": long.long}, {"long": {"wrong": YesOrNo()}})
    with pytest.raises(InvalidArgument, match="not there"):
        world.call("long", wrong=True)
    with pytest.raises(InvalidArgument, match="long has no argument 'other'; it takes wrong"):
        world.call("long", other=1)


def test_a_broker_that_closes_ends_the_wait_of_a_paced_call() -> None:
    world = World(clock=SystemClock())  # type: ignore[arg-type]
    world.publish("orders", [b"a", b"b"])
    world.settle("orders", world.lease("orders", 2), "reject")
    ended: list[Any] = []

    def redrive() -> None:
        try:
            world.call("dlq.redrive", topic="orders", rate=0.01)
        except Closed as error:
            ended.append(error)

    caller = Thread(target=redrive)
    caller.start()
    while world.port.host.look(lambda core: core.state.by_name["default", "orders"].partitions[0].end) < 3:
        pass  # until the first one is back
    world.close()
    caller.join(30)
    assert len(ended) == 1


async def test_a_loop_serves_others_between_portions() -> None:
    core = Core(MemoryJournal(), SystemClock(), node_id=1)
    broker = LoopBroker(Broker(core))
    batch = encode([Message(b"%d" % i) for i in range(20)])
    await broker.publish("default", "orders", BY_KEY, batch)
    leased = await broker.lease("default", "orders", "default", "c", 20)
    runs = [(Run(each.partition, each.lease_id, each.batch.base_offset, each.batch.count), "no") for each in leased]
    await broker.settle("default", "orders", "default", Settle(reject=runs))
    redrive = asyncio.ensure_future(broker.call("dlq.redrive", {"topic": "orders", "rate": 100.0}))
    served = 0
    while not redrive.done():
        await broker.publish("default", "other", BY_KEY, encode([Message(b"x")]))
        served += 1
    assert (await redrive)["redriven"] == 20
    assert served >= 2
    with pytest.raises(UnknownTopic):
        await broker.call("dlq.list", {"topic": "nothing"})
    await broker.close()


def test_a_step_says_what_must_be_durable(world: World) -> None:
    world.publish("orders", [b"a"] * 30)
    world.settle("orders", world.lease("orders", 30), "reject")
    done = world.port.administration.call("dlq.redrive", {"topic": "orders", "rate": 100.0})
    assert isinstance(done.reply, Portions)
    assert done.position == world.journal.end_position
