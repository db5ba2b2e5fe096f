"""One suite over four clients: embedded and over the network, for threads and for asyncio. The same calls, the same
outcomes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace
from headrace import errors
from integration.awaited import Awaited
from integration.server_thread import ServerThread

KINDS = ("embedded", "embedded aio", "network", "network aio")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    running = ServerThread()
    yield running
    running.stop()


@pytest.fixture(params=KINDS)
def opening(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a client; every test has a namespace of its own."""
    kind = request.param
    namespace = f"test-{next(_numbers)}"
    if kind == "embedded":
        return lambda **options: _sync(lambda: headrace.open(":memory:", namespace=namespace, **options))
    if kind == "embedded aio":
        return lambda **options: headrace.aio.open(":memory:", namespace=namespace, **options)
    url = request.getfixturevalue("server").url
    if kind == "network":
        return lambda **options: _sync(lambda: headrace.connect(url, namespace=namespace, **options))
    return lambda **options: headrace.aio.connect(url, namespace=namespace, **options)


async def _sync(make: Callable[[], Any]) -> Awaited:
    return Awaited(await asyncio.to_thread(make))


@pytest.fixture
async def hr(opening: Callable[..., Any]) -> AsyncIterator[Any]:
    client = await opening()
    yield client
    await client.close()


async def values_of(consumer: Any, count: int) -> list[bytes]:
    """The next ``count`` messages, acked."""
    found: list[bytes] = []
    while len(found) < count:
        ds = await consumer.receive(count - len(found), wait="10s")
        assert ds, f"only {len(found)} of {count} came"
        found += [d.value for d in ds]
        await consumer.ack(ds)
    return found


# -- publishing --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F001", "F003", "F006")
async def test_a_publish_answers_with_its_place(hr: Any) -> None:
    orders = await hr.topic("orders")
    first, second = await orders.publish(b"a"), await orders.publish("ä", key="k")
    assert (first.partition, first.offset, first.duplicate) == (0, 0, False)
    assert second.offset == 1
    assert second.id > first.id > 0


@pytest.mark.feature("F002")
async def test_many_are_published_in_one_call(hr: Any) -> None:
    orders = await hr.topic("orders")
    places = await orders.publish_many([b"a", "b", headrace.Message("c", key="k"), headrace.Message(json={"d": 1})])
    assert [place.offset for place in places] == [0, 1, 2, 3]
    async with orders.consumer() as consumer:
        assert await values_of(consumer, 4) == [b"a", b"b", b"c", b'{"d":1}']


async def test_large_amounts_leave_as_several_batches(hr: Any) -> None:
    orders = await hr.topic("orders")
    places = await orders.publish_many([b"x" * 1000] * 10_000)
    assert [place.offset for place in places] == list(range(10_000))
    assert (await orders.publish_many([])).duplicates == 0


async def test_rows_of_a_table_are_published(hr: Any) -> None:
    import pyarrow as pa

    orders = await hr.topic("orders")
    places = await orders.publish_many(pa.table({"value": [b"a", b"b"], "key": [b"k", None]}))
    assert len(places) == 2
    async with orders.consumer() as consumer:
        (first, second) = await consumer.receive(2, wait="10s")
        assert (first.key, second.key) == (b"k", None)


@pytest.mark.feature("F010", "F012")
async def test_what_a_message_says_arrives(hr: Any) -> None:
    orders = await hr.topic("orders")
    before = datetime.now(UTC) - timedelta(seconds=1)
    place = await orders.publish(
        json={"apples": 3},
        key="user-1",
        headers={"shop": "eu", "raw": b"\xff"},
        priority="high",
        ttl="1h",
        dedup_id="o-1",
        timestamp="2030-01-01T00:00:00Z",
        correlation_id="c-1",
    )
    async with orders.consumer(group="billing") as consumer:
        (d,) = await consumer.receive(wait="10s")
        assert d.json() == {"apples": 3}
        assert (d.id, d.partition, d.offset, d.key, d.priority) == (place.id, 0, 0, b"user-1", 1)
        assert d.headers == {
            "shop": "eu",
            "raw": b"\xff",
            "correlation_id": "c-1",
            "content_type": "application/json",
        }
        assert (d.topic, d.group, d.attempt, d.dedup_id, d.correlation_id) == ("orders", "billing", 1, b"o-1", "c-1")
        assert d.timestamp == datetime(2030, 1, 1, tzinfo=UTC)
        assert before < d.published_at < d.lease_until
        assert d.expires_at - d.published_at == timedelta(hours=1)


async def test_a_publisher_gathers_and_answers_each(hr: Any) -> None:
    clicks = await hr.topic("clicks")
    async with clicks.publisher() as publisher:
        receipts = [await publisher.publish(b"%d" % n, "user") for n in range(3_000)]
        plain = await publisher.publish("text", headers={"a": "b"}, priority="low")
        assert (await receipts[10]).offset == 10
    assert [(await receipt).offset for receipt in receipts] == list(range(3_000))
    assert (await plain.result("10s")).offset == 3_000
    with pytest.raises(errors.Closed):
        await publisher.publish(b"late")


async def test_a_lone_message_of_a_publisher_leaves_after_the_linger(hr: Any) -> None:
    clicks = await hr.topic("clicks")
    async with clicks.publisher() as publisher, clicks.consumer() as consumer:
        await publisher.publish(b"alone")
        assert [d.value for d in await consumer.receive(wait="10s")] == [b"alone"]


async def test_a_refused_publish_is_told_by_its_receipt_or_by_flush(hr: Any) -> None:
    small = await hr.topic("small", max_message_size="10B")
    publisher = small.publisher()
    receipt = await publisher.publish(b"x" * 11)
    with pytest.raises(errors.PayloadTooLarge):
        await receipt
    await publisher.publish(b"x" * 11)
    with pytest.raises(errors.PayloadTooLarge):
        await publisher.flush()
    await publisher.publish(b"x")
    await publisher.close()
    assert await small.depth() == 1


async def test_a_repeated_dedup_id_answers_with_the_first_copy(hr: Any) -> None:
    orders = await hr.topic("orders", partitions=3)
    first = await orders.publish(b"a", key="x", dedup_id="o-1")
    again = await orders.publish_many(
        [headrace.Message(b"b", dedup_id="o-2"), headrace.Message(b"a", key="x", dedup_id="o-1")]
    )
    assert [place.duplicate for place in again] == [False, True]
    assert again[1] == (first.id, first.partition, first.offset, True)


async def test_keys_choose_partitions(hr: Any) -> None:
    orders = await hr.topic("orders", partitions=4)
    messages = [headrace.Message(b"%d" % n, key=f"user-{n % 20}") for n in range(200)]
    places = await orders.publish_many(messages)
    by_key: dict[int, set[int]] = {}
    for n, place in enumerate(places):
        by_key.setdefault(n % 20, set()).add(place.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    assert {place.partition for place in places} == {0, 1, 2, 3}
    assert (await orders.publish(b"x", partition=2)).partition == 2
    with pytest.raises(errors.InvalidArgument, match="from 0 to 3"):
        await orders.publish(b"x", partition=4)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F220")
async def test_refusals_are_typed_and_say_what_was_wrong(hr: Any) -> None:
    await hr.topic("orders", partitions=2)
    with pytest.raises(errors.DuplicateConflict, match="partitions = 2, not 3"):
        await hr.topic("orders", partitions=3)
    with pytest.raises(errors.AlreadyExists, match="orders"):
        await hr.create_topic("orders")
    with pytest.raises(errors.InvalidArgument, match="max_retries"):
        await hr.topic("others", retry={"max_retries": -1})
    with pytest.raises(errors.InvalidArgument, match="no call"):
        await hr.call("make.coffee")
    with pytest.raises(errors.UnknownGroup, match="nobody"):
        await (await hr.topic("orders")).group("nobody").info()
    for name in ("", "a\nb", "#", "x" * 300):
        with pytest.raises(errors.InvalidArgument, match="topic"):
            await hr.topic(name)


async def test_arguments_of_a_wrong_kind_are_named(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"x")
    for partition in ("a", 1.0, -2, 1024, None):
        with pytest.raises(errors.InvalidArgument, match="partition"):
            await orders.publish(b"x", partition=partition)
        with pytest.raises(errors.InvalidArgument, match="partition"):
            await orders.publish_many([b"x"], partition=partition)
    for value in (5, None, [b"x"], {"a": 1}):
        with pytest.raises(errors.InvalidArgument, match="value"):
            await orders.publish(value)
    async with orders.consumer() as consumer:
        for deliveries in (5, None, ["a"], [b"x"]):
            with pytest.raises(errors.InvalidArgument, match="delivery"):
                await consumer.ack(deliveries)
        for n in (0, -1, "1", 1.5, 100_001):
            with pytest.raises(errors.InvalidArgument, match="n is"):
                await consumer.receive(n)
        (d,) = await consumer.receive(wait="10s")
        with pytest.raises(errors.InvalidArgument, match="by is 0"):
            await consumer.extend(d, 0)
        await consumer.ack(d)
    assert await orders.depth() == 0


@pytest.mark.feature("F018")
async def test_a_message_above_the_limit_is_refused(hr: Any) -> None:
    orders = await hr.topic("orders")
    with pytest.raises(errors.PayloadTooLarge, match="1048577"):
        await orders.publish(b"x" * 1_048_577)
    assert (await orders.publish(b"x" * 1_048_576)).offset == 0


async def test_a_full_topic_refuses_and_says_when_to_come_back(hr: Any) -> None:
    small = await hr.topic("small", max_depth=2)
    with pytest.raises(errors.LimitExceeded, match="3 messages at once"):
        await small.publish_many([b"a", b"b", b"c"])
    assert (await small.info())["published"] == 0, "a batch is stored whole or not at all"
    await small.publish_many([b"a", b"b"])
    with pytest.raises(errors.QueueFull, match="max_depth of 2") as refused:
        await small.publish(b"c")
    assert refused.value.retry_after_ns


async def test_a_group_with_other_settings_is_a_conflict(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.consumer(group="billing", limits={"rate": 5}):
        pass
    with pytest.raises(errors.DuplicateConflict, match=r"limits\.rate = 5"):
        await orders.consumer(group="billing", limits={"rate": 6})


@pytest.mark.feature("F014")
async def test_topics_appear_on_first_use(hr: Any) -> None:
    await hr.settle(publish=[("invoices", b"1 EUR")])
    assert [topic["topic"] for topic in await hr.topics()] == ["invoices"]


# -- consuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.feature("F027", "F028", "F036", "F216")
async def test_acked_messages_do_not_come_again(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([b"%d" % n for n in range(10)])
    async with orders.consumer(group="billing") as consumer:
        async for d in consumer.until_idle():
            async with d:
                pass
    async with orders.consumer(group="billing") as consumer:
        assert await consumer.receive(10, wait=0) == []
    info = await orders.group("billing").info()
    assert (info["acked"], info["ready"], info["leased"]) == (10, 0, 0)


@pytest.mark.feature("F029")
async def test_a_waiting_consumer_is_served_when_something_comes(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.consumer() as consumer:
        waiting = asyncio.ensure_future(consumer.receive(10, wait="10s"))
        await asyncio.sleep(0)
        await orders.publish(b"a")
        assert [d.value for d in await waiting] == [b"a"]


async def test_every_group_sees_every_message(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([b"a", b"b"])
    for group in ("one", "two"):
        async with orders.consumer(group=group) as consumer:
            assert await values_of(consumer, 2) == [b"a", b"b"]
    async with orders.consumer(group="late", start="latest") as late:
        await orders.publish(b"c")
        assert await values_of(late, 1) == [b"c"]
    async with orders.consumer(group="second", offset=1) as second:
        assert await values_of(second, 2) == [b"b", b"c"]


async def test_an_error_in_a_block_nacks_with_its_text(hr: Any) -> None:
    orders = await hr.topic("orders", retry={"initial_backoff": "1h"})
    await orders.publish(b"a")
    async with orders.consumer() as consumer:
        (d,) = await consumer.receive(wait="10s")
        with pytest.raises(ValueError, match="no apples"):
            async with d:
                raise ValueError("no apples")
        await consumer.flush()
    (waiting,) = await orders.browse("scheduled")
    assert (waiting["attempts"], waiting["last_error"]) == (1, "ValueError: no apples")


async def test_a_nack_without_delay_brings_the_next_attempt(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"a")
    async with orders.consumer() as consumer:
        for attempt in (1, 2, 3):
            (d,) = await consumer.receive(wait="10s")
            assert d.attempt == attempt
            await d.nack(delay=0, error="not now")
        (d,) = await consumer.receive(wait="10s")
        await d.ack()
        await d.ack()
        with pytest.raises(errors.InvalidArgument, match="settled already"):
            await d.nack()
        await consumer.flush()


async def test_a_release_is_not_counted(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"a")
    async with orders.consumer() as consumer:
        for _ in range(2):
            (d,) = await consumer.receive(wait="10s")
            assert d.attempt == 1
            await d.release()
            await consumer.flush()


async def test_a_rejected_message_dies_at_once(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"poison", key="k", headers={"a": "b"})
    async with orders.consumer(group="billing") as consumer:
        (d,) = await consumer.receive(wait="10s")
        await d.reject("no such user")
    dead = await hr.topic("dlq/orders")
    async with dead.consumer() as undertaker:
        (d,) = await undertaker.receive(wait="10s")
        assert (d.value, d.key, d.headers["a"]) == (b"poison", b"k", "b")
        assert any("no such user" in str(value) for value in d.headers.values())


async def test_verbs_on_many_are_confirmed(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none")
    await orders.publish_many([b"%d" % n for n in range(100)])
    async with orders.consumer(prefetch=1) as consumer:
        ds = await consumer.receive(100, wait="10s")
        assert len(ds) == 100
        await consumer.ack(ds[:40])
        await consumer.nack(ds[40:60], delay="1h", error="later")
        await consumer.release(ds[60:80])
        await consumer.reject(ds[80:])
        info = await orders.group().info()
        assert (info["acked"], info["scheduled"], info["ready"], info["dead"], info["leased"]) == (40, 20, 20, 20, 0)


async def test_a_lease_that_ran_out_is_lost(hr: Any) -> None:
    orders = await hr.topic("orders", retry={"initial_backoff": "0s"})
    await orders.publish(b"a")
    async with orders.consumer(lease="50ms", prefetch=1) as slow, orders.consumer(prefetch=1) as quick:
        (late,) = await slow.receive(wait="10s")
        (again,) = await quick.receive(wait="10s")
        assert again.attempt == 2
        with pytest.raises(errors.LeaseLost):
            await slow.ack(late)
        with pytest.raises(errors.LeaseLost):
            await slow.extend([late], "1m")
        await quick.ack(again)


async def test_a_held_lease_is_renewed(hr: Any) -> None:
    orders = await hr.topic("orders", retry={"initial_backoff": "0s"})
    await orders.publish(b"a")
    async with orders.consumer(lease="300ms") as slow, orders.consumer() as other:
        (d,) = await slow.receive(wait="10s")
        async with d:
            assert await other.receive(wait="1s") == []  # more than three leases
        await slow.flush()
    assert (await orders.group().info())["acked"] == 1


async def test_an_extended_lease_lasts_longer(hr: Any) -> None:
    orders = await hr.topic("orders", retry={"initial_backoff": "0s"})
    await orders.publish(b"a")
    async with orders.consumer(lease="200ms") as slow, orders.consumer() as other:
        (d,) = await slow.receive(wait="10s")
        await d.extend("1h")
        assert await other.receive(wait="500ms") == []
        await slow.ack(d)


@pytest.mark.feature("F030", "F094")
async def test_a_consumer_that_leaves_gives_back_what_it_holds(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([b"a", b"b", b"c"])
    leaving = await orders.consumer(prefetch=100)
    assert len(await leaving.receive(1, wait="10s")) == 1
    await leaving.close()
    with pytest.raises(errors.Closed):
        await leaving.receive()
    async with orders.consumer() as consumer:
        ds = await consumer.receive(3, wait="10s")
        while len(ds) < 3:
            ds += await consumer.receive(3, wait="10s")
        assert {d.attempt for d in ds} == {1}
        assert (await orders.group().info())["consumers"] == [consumer.name]


async def test_an_ephemeral_group_goes_with_its_last_consumer(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.consumer(group="watch", durable=False, start="latest"):
        assert "watch" in [group["group"] for group in await orders.groups()]
    assert "watch" not in [group["group"] for group in await orders.groups()]


async def test_at_most_once_by_choice(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"a")
    async with orders.consumer(group="once", auto_ack=True, prefetch=1) as consumer:
        assert len(await consumer.receive(wait="10s")) == 1
        assert (await orders.group("once").info())["acked"] == 1


async def test_a_filter_keeps_out_what_a_group_does_not_want(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([headrace.Message(shop, headers={"shop": shop}) for shop in ("eu", "us", "eu")])
    async with orders.consumer(group="europe", filter={"headers": {"shop": "eu"}}) as consumer:
        assert await values_of(consumer, 2) == [b"eu", b"eu"]
        assert await consumer.receive(wait=0) == []


@pytest.mark.feature("F043")
async def test_columns_are_received_and_acked_together(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([headrace.Message(b"%d" % n, key="k", headers={"n": str(n)}) for n in range(50)])
    async with orders.consumer(group="lake", ordering="none") as consumer:
        rows = await consumer.receive_arrow(1_000, wait="10s")
        table = rows.to_arrow()
        assert table.num_rows == len(rows) == 50
        assert table.column("value").to_pylist() == [b"%d" % n for n in range(50)]
        assert set(table.column("attempt").to_pylist()) == {1}
        await rows.ack()
        assert len(await consumer.receive_arrow(10, wait=0)) == 0
        assert (await orders.group("lake").info())["acked"] == 50


async def test_order_holds_within_a_key_over_retries(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([headrace.Message(b"%d" % n, key="user-1") for n in range(20)])
    seen: list[bytes] = []
    failed: set[bytes] = set()
    async with orders.consumer(prefetch=50) as consumer:
        while len(seen) < 20:
            for d in await consumer.receive(10, wait="10s"):
                if d.value not in failed and int(d.value) % 3 == 0:
                    failed.add(d.value)
                    await d.nack(delay=0)
                else:
                    seen.append(d.value)
                    await d.ack()
    assert seen == [b"%d" % n for n in range(20)]


async def test_a_delayed_message_waits(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"later", delay="300ms")
    await orders.publish(b"never", delay="1h")
    await orders.publish(b"now")
    async with orders.consumer() as consumer:
        assert await values_of(consumer, 2) == [b"now", b"later"]
        assert await consumer.receive(wait=0) == []
    assert len(await orders.browse("scheduled")) == 1


async def test_priorities_go_first(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none")
    await orders.publish_many([headrace.Message(name, priority=name) for name in ("low", "normal", "high")])
    async with orders.consumer() as consumer:
        assert await values_of(consumer, 3) == [b"high", b"normal", b"low"]


async def test_a_cancelled_receive_loses_nothing(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.consumer() as consumer:
        waiting = asyncio.ensure_future(consumer.receive(1, wait="300ms"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await orders.publish(b"a")
        if isinstance(consumer, Awaited):
            await asyncio.sleep(0.4)  # a thread cannot be cancelled: it gets the message, and gives it back
            await consumer.close()
            async with orders.consumer() as other:
                return_value = await other.receive(wait="10s")
                assert [d.value for d in return_value] == [b"a"]
            return
        assert await values_of(consumer, 1) == [b"a"]


# -- several things at once --------------------------------------------------------------------------------------------


async def test_an_atomic_settle_does_all_of_it(hr: Any) -> None:
    orders, invoices = await hr.topic("orders", ordering="none"), await hr.topic("invoices")
    await orders.publish_many([b"a", b"b", b"c"])
    timer = await invoices.publish(b"reminder", delay="1h")
    async with orders.consumer() as consumer:
        first, second, third = await consumer.receive(3, wait="10s")
        done = await hr.settle(
            ack=[first],
            nack=[(second, "1h", "busy")],
            reject=[(third, "bad")],
            publish=[("invoices", b"1 EUR"), (invoices, headrace.Message(b"2 EUR", key="k"))],
            cancel=[("invoices", timer.id)],
        )
        assert (done.settled, len(done.published), done.cancelled) == (3, 2, 1)
        assert first.settled
        info = await orders.group().info()
        assert (info["acked"], info["scheduled"], info["dead"]) == (1, 1, 1)
    async with invoices.consumer() as consumer:
        assert await values_of(consumer, 2) == [b"1 EUR", b"2 EUR"]
    assert await invoices.browse("scheduled") == []


async def test_only_what_was_scheduled_counts_as_cancelled(hr: Any) -> None:
    invoices = await hr.topic("invoices")
    timer = await invoices.publish(b"reminder", delay="1h")
    assert (await hr.settle(cancel=[(invoices, 5), (invoices, timer.id)])).cancelled == 1
    assert (await hr.settle(cancel=[(invoices, timer.id)])).cancelled == 0


async def test_an_atomic_settle_does_nothing_of_it_when_a_lease_was_lost(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none", retry={"initial_backoff": "0s"})
    await orders.publish_many([b"a", b"b"])
    async with orders.consumer(lease="50ms", prefetch=1) as slow, orders.consumer(prefetch=1) as other:
        ds = await slow.receive(2, wait="10s")
        taken = await other.receive(2, wait="10s")
        with pytest.raises(errors.LeaseLost):
            await hr.settle(ack=ds, publish=[("invoices", b"1 EUR")])
        assert not ds[0].settled
        assert taken
    assert await (await hr.topic("invoices")).depth() == 0


async def test_an_atomic_settle_refuses_what_it_cannot_mean(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish(b"a")
    async with orders.consumer(group="one") as one, orders.consumer(group="two") as two:
        (d,), (other,) = await one.receive(wait="10s"), await two.receive(wait="10s")
        for wrong in (
            {},
            {"ack": [d, other]},
            {"ack": ["d"]},
            {"publish": ["invoices"]},
            {"schedule": [("invoices", b"now")]},
            {"extend": [d]},
            {"nack": [(d, "1s", "x", "y")]},
        ):
            with pytest.raises(errors.InvalidArgument):
                await hr.settle(**wrong)
        await d.ack()
        with pytest.raises(errors.InvalidArgument, match="settled already"):
            await hr.settle(ack=[d])


# -- replay ------------------------------------------------------------------------------------------------------------


async def test_the_log_is_read_again_without_a_group(hr: Any) -> None:
    orders = await hr.topic("orders", partitions=2)
    await orders.publish_many([headrace.Message(b"%d" % n, key=f"k{n % 7}") for n in range(100)])
    records = [record async for record in orders.read()]
    assert sorted(int(record.value) for record in records) == list(range(100))
    assert [record.offset for record in records if record.partition == 1] == sorted(
        record.offset for record in records if record.partition == 1
    )
    some = [record async for record in orders.read(partition=0, from_offset=5, to_offset=8)]
    assert [record.offset for record in some] == [5, 6, 7]
    assert len([record async for record in orders.read(limit=10)]) == 10
    assert [record async for record in orders.read(from_time=datetime.now(UTC) + timedelta(hours=1))] == []
    table = await orders.read(to_time=datetime.now(UTC) + timedelta(hours=1)).to_arrow()
    assert table.num_rows == 100
    assert (await orders.read(from_offset=1_000).to_arrow()).num_rows == 0
    with pytest.raises(errors.InvalidArgument, match="limit"):
        orders.read(limit=0)


# -- administration ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("F219", "F223", "F224", "F225", "F226")
async def test_topics_are_looked_at_changed_purged_and_deleted(hr: Any) -> None:
    orders = await hr.topic("orders", max_depth=5, message_ttl="1h", ordering="none")
    await orders.publish_many([b"a", b"b", b"c"])
    info = await orders.info()
    assert (info["topic"], info["partitions"], info["settings"]["max_depth"]) == ("orders", 1, 5)
    await orders.configure(max_depth=10)
    assert (await orders.info())["settings"]["max_depth"] == 10
    assert await orders.depth() == 3
    assert (await orders.stats())["published"] == 3
    assert [found["value"] for found in await orders.browse()] == [b"a", b"b", b"c"]
    assert await orders.purge() == 3
    assert await orders.depth() == 0
    await orders.delete()
    assert await hr.topics() == []
    assert hr.namespace in (await hr.namespaces()) or (await hr.topics()) == []
    assert (await (await hr.topic("orders")).publish(b"new")).offset == 0


async def test_a_group_is_sought_paused_and_resumed(hr: Any) -> None:
    orders = await hr.topic("orders")
    await orders.publish_many([b"a", b"b", b"c"])
    billing = orders.group("billing")
    await billing.create("latest", limits={"rate": 100})
    async with orders.consumer(group="billing") as consumer:
        assert await consumer.receive(wait=0) == []
        await billing.seek("earliest")
        assert await values_of(consumer, 3) == [b"a", b"b", b"c"]
        await billing.pause("inventory", by="me")
        assert (await billing.info())["paused"]["why"] == "inventory"
        await billing.seek(offset=1)
        assert await consumer.receive(wait="100ms") == []
        await billing.resume()
        assert await values_of(consumer, 2) == [b"b", b"c"]
    await billing.configure(limits={"rate": "none"})
    await billing.purge()
    await billing.delete()
    with pytest.raises(errors.UnknownGroup):
        await billing.info()
    for wrong in ({}, {"start": "soon"}, {"start": "earliest", "offset": 1}):
        with pytest.raises(errors.InvalidArgument):
            await billing.create(**wrong) if wrong else await billing.seek()


async def test_a_consumer_of_a_deleted_group_is_told(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.consumer(group="billing") as consumer:
        await orders.group("billing").delete()
        with pytest.raises((errors.UnknownGroup, errors.Closed)):
            await consumer.receive(wait="10s")


# -- requests and workers ----------------------------------------------------------------------------------------------


@pytest.mark.feature("F026")
async def test_a_request_is_answered_by_a_worker(hr: Any) -> None:
    def validate(d: Any) -> bytes:
        return b"ok " + d.value

    hr.worker("auth/validate", group="auth", concurrency=2)(validate)
    async with hr.workers:
        answers = await asyncio.gather(*(hr.request("auth/validate", f"user-{n}", timeout="10s") for n in range(5)))
        assert [answer.text for answer in answers] == [f"ok user-{n}" for n in range(5)]
    with pytest.raises(errors.TimedOut, match="auth/validate"):
        await hr.request("auth/validate", b"nobody listens", timeout="50ms")


async def test_a_worker_may_be_a_coroutine(hr: Any) -> None:
    seen: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def send(d: Any) -> None:
        await asyncio.sleep(0)
        seen.append(d.text)
        if len(seen) == 10:
            loop.call_soon_threadsafe(done.set)

    emails = await hr.topic("emails")
    hr.worker("emails", group="mailers", concurrency=4)(send)
    async with hr.workers:
        await emails.publish_many([f"mail {n}" for n in range(10)])
        await asyncio.wait_for(done.wait(), 10)
    assert sorted(seen) == sorted(f"mail {n}" for n in range(10))
    assert (await emails.group("mailers").info())["acked"] == 10


async def test_a_worker_that_fails_nacks_and_goes_on(hr: Any, caplog: pytest.LogCaptureFixture) -> None:
    emails = await hr.topic("emails", retry={"initial_backoff": "1h"}, ordering="none")
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def send(d: Any) -> None:
        if d.text == "bad":
            raise ValueError("no such address")
        loop.call_soon_threadsafe(done.set)

    hr.worker("emails")(send)
    async with hr.workers:
        await emails.publish_many(["bad", "good"])
        await asyncio.wait_for(done.wait(), 10)
    (waiting,) = await emails.browse("scheduled")
    assert waiting["last_error"] == "ValueError: no such address"
    assert "no such address" in caplog.text


@pytest.mark.feature("F253")
async def test_a_consumer_holds_no_more_than_its_prefetch_and_the_rest_is_there_for_others(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none", retry={"max_retries": 0})
    await orders.publish_many([b"%d" % n for n in range(50)])
    async with orders.consumer(prefetch=4) as slow:
        (d,) = [await anext(aiter(slow))]
        async with orders.consumer(prefetch=1) as other:
            rest = await values_of(other, 46)
        assert len(set(rest)) == 46
        await d.nack(error="once is enough")
        await slow.flush()
        info = await orders.group().info()
        assert (info["dead"], info["acked"]) == (1, 46)


async def test_a_loop_with_a_quick_handler_is_given_more_at_a_time(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none")
    await orders.publish_many([b"x"] * 4_000)
    most = 0
    async with orders.consumer() as consumer:
        async for d in consumer.until_idle("10s"):
            await d.ack()
            most = max(most, d.offset)
            if d.offset == 3_999:
                break
        await consumer.flush()
    info = await orders.group().info()
    assert (info["acked"], most) == (4_000, 3_999)


async def test_priorities_and_delays_go_through_a_publisher_too(hr: Any) -> None:
    orders = await hr.topic("orders")
    async with orders.publisher() as publisher:
        for n in range(5):
            await publisher.publish(b"%d" % n, priority=9 - n)
        later = await publisher.publish(b"later", delay="1h")
    assert (await later.result()).offset == 5
    assert (await orders.schedule.count())["scheduled"] == 1
    async with orders.consumer() as consumer:
        assert await values_of(consumer, 5) == [b"4", b"3", b"2", b"1", b"0"]


async def test_a_handler_that_becomes_slow_gives_back_what_it_took_too_much_of(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none")
    await orders.publish_many([b"%d" % n for n in range(2_000)])
    async with orders.consumer(lease="1s") as slow:
        loop = aiter(slow)
        quick = 0
        while quick < 600:
            d = await anext(loop)
            await d.ack()
            quick += 1
        async with await anext(loop), orders.consumer(lease="1m", prefetch=1) as other:
            found: set[bytes] = set()
            while len(found) < 2_000 - 600 - 1 - 2 * 16:
                ds = await other.receive(500, wait="60s")
                assert {d.attempt for d in ds} == {1}
                found |= {d.value for d in ds}
                await other.ack(ds)


# -- consumers that are busy with something else -----------------------------------------------------------------------


async def test_a_consumer_that_does_not_ask_costs_no_attempts_and_keeps_nothing_from_others(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none", retry={"initial_backoff": "0s", "max_retries": 0})
    await orders.publish_many([b"%d" % n for n in range(4)])
    async with orders.consumer(lease="2s") as idle, orders.consumer(lease="2s") as hungry:
        await (await anext(aiter(idle))).ack()  # a loop takes more than it hands out
        await idle.flush()
        await orders.publish_many([b"%d" % n for n in range(4, 12)])  # some of it is pushed to the idle one
        found: list[Any] = []
        while len(found) < 11:
            ds = await hungry.receive(11, wait="10s")
            assert ds, f"only {len(found)} came"
            await hungry.ack(ds)
            found += ds
        assert {d.attempt for d in found} == {1}
        await orders.publish(b"again")
        (d,) = await idle.receive(wait="10s") or await hungry.receive(wait="10s")
        assert (d.value, d.attempt) == (b"again", 1)
    assert await orders.dead_letters.list() == []


async def test_a_slow_loop_without_blocks_gets_each_message_once(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="none", retry={"initial_backoff": "0s"})
    await orders.publish_many([b"%d" % n for n in range(12)])
    seen: list[tuple[bytes, int]] = []
    async with orders.consumer(lease="1500ms") as consumer:
        async for d in consumer.until_idle("1s"):
            await asyncio.sleep(0.25)  # the work: all of it takes two leases
            await d.ack()
            seen.append((d.value, d.attempt))
        await consumer.flush()
    assert seen == [(b"%d" % n, 1) for n in range(12)]
    assert (await orders.group().info())["acked"] == 12


async def test_an_idle_consumer_of_an_ordered_partition_keeps_the_order(hr: Any) -> None:
    orders = await hr.topic("orders", ordering="partition", retry={"initial_backoff": "0s", "max_retries": 0})
    await orders.publish_many([b"%d" % n for n in range(40)])
    seen: list[bytes] = []
    async with orders.consumer(lease="900ms") as consumer:
        async for d in consumer.until_idle("1s"):
            assert d.attempt == 1
            seen.append(d.value)
            if len(seen) in (3, 20):
                async with d:
                    await asyncio.sleep(1.2)  # the work: longer than a lease
            await d.ack()
    assert seen == [b"%d" % n for n in range(40)]


async def test_at_most_once_loses_nothing_of_what_was_handed_out_to_a_consumer_that_does_something_else(
    hr: Any,
) -> None:
    orders = await hr.topic("orders", ordering="none")
    async with orders.consumer(group="once", auto_ack=True, lease="100ms") as consumer:
        await orders.publish_many([b"%d" % n for n in range(6)])
        (first,) = await consumer.receive(1, wait="10s")
        await asyncio.sleep(0.3)  # three leases
        rest = await values_of_unacked(consumer, 5)
        assert {first.value, *rest} == {b"%d" % n for n in range(6)}


async def values_of_unacked(consumer: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        ds = await consumer.receive(count - len(found), wait="10s")
        assert ds, f"only {len(found)} of {count} came"
        found += [d.value for d in ds]
    return found


async def test_a_lease_above_what_the_topic_allows_is_refused_when_the_consumer_is_opened(hr: Any) -> None:
    orders = await hr.topic("orders", max_lease="1m")
    with pytest.raises(errors.InvalidArgument, match=r"18000.0s: must be over 0s and up to 60.0s \(max_lease\)"):
        async with orders.consumer(lease="5h"):
            raise AssertionError("it was opened")
    async with orders.consumer(lease="1m"):
        assert len((await orders.group().info())["consumers"]) == 1
