"""What a consumer makes of what its port brings: waiting, losses, what is handed out when; over a scripted port."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.batch import encode_columns
from headrace.calls import LeasedBatch, Run, Settle, Settled, Tended
from headrace.client import aio_consumer, consumer
from headrace.client.appetite import Appetite
from headrace.errors import HeadraceError, LeaseLost, TimedOut
from headrace.limits import CLIENT_IDLE_NS, SECOND_NS

LEASE_NS = 30 * SECOND_NS


class ScriptedPort:
    """Brings what it is told to, on a clock of the test's; what it brings costs time."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.life = 0
        self.auto_ack = False
        self.brings: deque[tuple[int, int, int]] = deque()  # after a span, so many, leased for another span
        self.asked: list[int] = []
        self.tended: list[Settle] = []
        self.settled: list[Settle] = []
        self.refusal: HeadraceError | None = None
        self.refuses_tending = False
        self._offset = 0

    def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:
        self.asked.append(most)
        if not self.brings:
            self.now_ns += wait_ns
            return []
        took_ns, count, lease_ns = self.brings[0]
        if took_ns > wait_ns:
            self.brings[0] = took_ns - wait_ns, count, lease_ns
            self.now_ns += wait_ns
            return []
        self.brings.popleft()
        self.now_ns += took_ns
        first, self._offset = self._offset, self._offset + count
        batch = encode_columns([b"%d" % n for n in range(first, first + count)]).stamp(first, 100 + first, 1)
        return [LeasedBatch(0, 7, batch, self.now_ns + lease_ns, {})]

    def tend(self, order: Settle, tended: Tended) -> None:
        self.tended.append(order)
        tended([run for run, _ in order.extend] + list(order.release) if self.refuses_tending else [])

    def tell_held(self, held: Callable[[], Sequence[Run]]) -> None:
        self.held = held

    def settle(self, order: Settle) -> Settled:
        self.settled.append(order)
        return Settled(0)

    def settle_soon(self, order: Settle) -> None:
        self.settled.append(order)

    def flush(self) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal

    def interrupt(self) -> None:
        """Nothing here waits."""

    def close(self) -> None:
        """Nothing here is open."""


class AsyncScriptedPort(ScriptedPort):
    async def receive(self, most: int, wait_ns: int) -> list[LeasedBatch]:  # type: ignore[override] # awaited
        return super().receive(most, wait_ns)

    async def settle(self, order: Settle) -> Settled:  # type: ignore[override] # awaited
        return super().settle(order)

    async def flush(self) -> None:  # type: ignore[override] # awaited
        super().flush()

    async def close(self) -> None:  # type: ignore[override] # awaited
        """Nothing here is open."""


class Client:
    """What a consumer needs of one; nobody keeps it, the test calls ``keep``."""

    def __init__(self, port: ScriptedPort) -> None:
        self.now_ns = lambda: port.now_ns
        self.keeper = self
        self.attended: list[int] = []

    def add(self, _kept: object) -> None:
        """Nobody comes by."""

    remove = forget = add

    def attend(self, at_ns: int) -> None:
        self.attended.append(at_ns)


@pytest.fixture
def port() -> ScriptedPort:
    return ScriptedPort()


def consuming(port: ScriptedPort, prefetch: int | None = None) -> consumer.Consumer:
    client: Any = Client(port)
    return consumer.Consumer(client, "orders", "g", "c", port, Appetite(prefetch))


def values(found: Sequence[Any]) -> list[bytes]:
    return [d.value for d in found]


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_receive_goes_on_waiting_when_what_it_found_may_not_be_handed_out(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.extend([(0, 4, LEASE_NS), (90 * SECOND_NS, 1, LEASE_NS)])
    assert values(mine.receive(1)) == [b"0"]
    port.now_ns += LEASE_NS
    assert values(mine.receive(1)) == [b"4"]
    assert port.tended == [Settle(release=[Run(0, 7, 1, 3)])]
    port.brings.extend([(0, 4, LEASE_NS), (90 * SECOND_NS, 1, LEASE_NS)])
    assert len(mine.receive_arrow(1)) == 1
    port.now_ns += LEASE_NS
    (row,) = mine.receive_arrow(10).to_arrow().to_pylist()
    assert row["value"] == b"9"


def test_a_receive_with_a_deadline_waits_until_then_and_no_longer(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.append((0, 4, LEASE_NS))
    assert len(mine.receive(1)) == 1
    port.now_ns += LEASE_NS
    for receive in (mine.receive, mine.receive_arrow):
        began_ns = port.now_ns
        assert len(receive(1, wait="3500ms")) == 0
        assert port.now_ns - began_ns == 3_500_000_000


async def test_the_same_for_asyncio() -> None:
    port = AsyncScriptedPort()
    client: Any = Client(port)
    mine = aio_consumer.Consumer(client, "orders", "g", "c", port, Appetite())
    port.brings.extend([(0, 4, LEASE_NS), (SECOND_NS, 1, LEASE_NS)])
    assert values(await mine.receive(1)) == [b"0"]
    port.now_ns += LEASE_NS
    assert values(await mine.receive(1)) == [b"4"]
    assert port.tended == [Settle(release=[Run(0, 7, 1, 3)])]
    port.brings.append((0, 4, LEASE_NS))
    assert len(await mine.receive_arrow(1)) == 1
    port.now_ns += LEASE_NS
    began_ns = port.now_ns
    assert len(await mine.receive_arrow(1, wait="3500ms")) == 0
    assert port.now_ns - began_ns == 3_500_000_000
    await mine.close()


# -- a loop ------------------------------------------------------------------------------------------------------------


def test_a_loop_without_blocks_gets_every_message_with_a_whole_lease_before_it(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.extend([(0, 8, LEASE_NS)] * 3)
    left: list[int] = []
    for d in mine.until_idle("1s"):
        left.append(d._holding.deadline_of(d._index) - port.now_ns)
        for _ in range(9):  # a handler that takes most of the idle span, with visits of the keeper meanwhile
            port.now_ns += CLIENT_IDLE_NS // 10
            mine.keep(port.now_ns)
        d.ack()
    assert len(left) == 24
    assert min(left) >= LEASE_NS * 2 // 3 - CLIENT_IDLE_NS


def test_a_loop_with_a_slow_handler_takes_one_at_a_time_and_gives_back_the_rest(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.extend([(0, 8, LEASE_NS), (0, 1, LEASE_NS), (0, 1, LEASE_NS)])
    seen: list[bytes] = []
    for d in mine.until_idle("1s"):
        seen.append(d.value)
        port.now_ns += 2 * CLIENT_IDLE_NS
        mine.keep(port.now_ns)
        d.ack()
    assert seen == [b"0", b"8", b"9"]
    assert port.asked == [8, 1, 1, 1]
    assert port.tended == [Settle(extend=[], release=[Run(0, 7, 1, 7)])]


def test_what_a_broker_took_back_is_not_handed_out_of_the_hand(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.extend([(0, 4, LEASE_NS), (0, 1, LEASE_NS)])
    loop = mine.until_idle()
    assert next(loop).value == b"0"
    port.life += 1
    assert next(loop).value == b"4"
    assert port.tended == [Settle(release=[Run(0, 7, 1, 3)])]


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LeaseLost("too late"), TimedOut("no connection for 120s")])
def test_a_loss_that_the_keeper_met_is_raised_by_flush(port: ScriptedPort, error: HeadraceError) -> None:
    mine = consuming(port)
    port.brings.append((0, 1, LEASE_NS))
    (d,) = mine.receive(1)
    d.ack()
    port.refusal = error
    mine.keep(port.now_ns)
    with pytest.raises(type(error)):
        mine.flush()
    mine.flush()
    mine.close()


def test_a_close_tells_of_what_did_not_reach_the_broker_and_not_of_what_comes_again(port: ScriptedPort) -> None:
    for error, told in ((LeaseLost("too late"), False), (TimedOut("no connection for 120s"), True)):
        mine = consuming(port)
        port.brings.append((0, 1, LEASE_NS))
        mine.receive(1)[0].ack()
        port.refusal = error
        mine.keep(port.now_ns)
        if told:
            with pytest.raises(TimedOut):
                mine.close()
        else:
            mine.close()


def test_a_renewal_that_comes_too_late_is_no_loss_of_the_program(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.append((0, 4, LEASE_NS))
    (d,) = mine.receive(1)
    with d:
        port.refuses_tending = True
        port.now_ns += LEASE_NS // 3
        mine._hand.asked_ns = port.now_ns
        mine.keep(port.now_ns)
        assert mine._hand.waiting == 0
    mine.flush()


def test_what_the_program_holds_is_told(port: ScriptedPort) -> None:
    mine = consuming(port)
    port.brings.append((0, 4, LEASE_NS))
    ds = mine.receive(3)
    ds[1].ack()
    assert sorted((run.first_offset, run.count) for run in port.held()) == [(0, 1), (2, 2)]
