"""A whole life of orders, and what Spark makes of it: `make pipeline-demo`.

Starts a server, publishes orders of some shops with priorities and delays, lets workers ack, fail and be slow, and
then runs jobs on Spark: archive, latency, dead-letters, redrive (dry, then in earnest, into a worker that has been
repaired). It ends with one page that opens in a browser: `OUT/report.html`.

    python examples/pipeline_demo.py [--orders 2000] [--out ./pipeline-demo]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import headrace

SHOPS = ("north", "south", "harbour", "station")
TOPIC = "orders"
READY_SECONDS = 60


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def server(data: Path) -> Iterator[str]:
    """A server of its own on a free port; its address."""
    ready = data.with_name("ready.json")
    ready.unlink(missing_ok=True)
    doors = [part for door in ("http", "mqtt", "grpc") for part in (f"--{door}-port", "off")]
    command = [sys.executable, "-m", "headrace", "serve", "--data-dir", str(data), "--native-port", "0", *doors]
    process = subprocess.Popen([*command, "--ready-file", str(ready), "--log-level", "warning"])
    try:
        until = time.monotonic() + READY_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start")
            time.sleep(0.05)
        yield f"headrace://{json.loads(ready.read_text())['native']}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def order(number: int, chance: random.Random) -> dict[str, Any]:
    """One order, as a shop would send it."""
    return {
        "order": number,
        "shop": chance.choice(SHOPS),
        "customer": f"customer-{chance.randrange(200)}",
        "items": [{"article": chance.randrange(1_000), "count": chance.randint(1, 5)}],
        "sum": round(chance.lognormvariate(3.2, 0.8), 2),
        "card": "expired" if chance.random() < 0.02 else "valid",
    }


def produce(url: str, count: int, chance: random.Random) -> None:
    """Orders: one in ten is urgent, one in twenty is to be sent a little later, some are no JSON."""
    with headrace.connect(url) as hr:
        orders = hr.topic(TOPIC)
        for number in range(count):
            one = order(number, chance)
            value = b"<order/>" if chance.random() < 0.005 else json.dumps(one).encode()
            orders.publish(
                value,
                key=one["customer"],
                headers={"shop": one["shop"]},
                priority="high" if chance.random() < 0.1 else "normal",
                delay="1500ms" if chance.random() < 0.05 else None,
            )


def work(url: str, name: str, stop: threading.Event, seed: int, *, pause: float, warehouse: bool) -> None:
    """Until told to stop. The warehouse is down for a customer in twelve, unless it has been repaired."""
    chance = random.Random(seed)
    with headrace.connect(url) as hr, hr.topic(TOPIC).consumer(name=name, prefetch=20) as consumer:
        while not stop.is_set():
            for d in consumer.receive(20, wait="200ms"):
                if pause:
                    stop.wait(pause)
                handle(d, chance, warehouse=warehouse)


def handle(d: Any, chance: random.Random, *, warehouse: bool) -> None:
    try:
        one = json.loads(d.value)
    except ValueError:
        d.reject(error="payload is no JSON")
        return
    if one["card"] == "expired":
        d.reject(error=f"card of {one['customer']} has expired")
    elif int(one["customer"].split("-")[1]) % 12 == 0 and not warehouse:
        d.nack(error=f"warehouse did not answer within {chance.randrange(900, 1100)} ms")
    elif chance.random() < 0.04:
        d.nack(error=f"connection reset by peer (attempt {d.attempt})")
    else:
        d.ack()


@contextmanager
def workers(url: str, *, repaired: bool = False) -> Iterator[None]:
    """Three workers, one of them slow."""
    stop = threading.Event()
    given = (("anna", 0.0), ("bert", 0.0005), ("carl", 0.01))
    threads = [
        threading.Thread(target=work, args=(url, name, stop, seed), kwargs={"pause": pause, "warehouse": repaired})
        for seed, (name, pause) in enumerate(given)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def settled(url: str) -> dict[str, Any]:
    """Wait until every order is acked or dead; the books."""
    with headrace.connect(url) as hr:
        while True:
            [books] = [each for each in hr.port.call("group.list", topic=TOPIC) if each["group"] == "default"]
            if not (books["ready"] or books["leased"] or books["scheduled"]):
                return dict(books)
            time.sleep(0.2)


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=Path("pipeline-demo"))
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args(arguments)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with server(out / f"data-{time.strftime('%Y%m%d-%H%M%S')}") as url:
        lived(url, given.orders)
        return analysed(url, out / time.strftime("%Y%m%d-%H%M%S"), given.master, out / "report.html")


def lived(url: str, count: int) -> None:
    settings = {"partitions": 4, "retry.max_retries": 2, "retry.initial_backoff": "300ms", "lease": "30s"}
    with headrace.connect(url) as hr:
        hr.port.call("topic.create", topic=TOPIC, settings=settings)
    say(f"publishing {count:,} orders while three workers work on them")
    with workers(url):
        produce(url, count, random.Random(7))
        books = settled(url)
    say(f"acked {books['acked']:,}, dead {books['dead']:,}, {books['redelivered']:,} times delivered again")


def analysed(url: str, tables: Path, master: str, page_path: Path) -> Path:
    from headrace.spark import session

    say("starting Spark")
    spark = session("pipeline-demo", master=master, conf={"spark.sql.shuffle.partitions": "4"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        return reported(url, tables, spark, page_path)
    finally:
        spark.stop()


def reported(url: str, tables: Path, spark: Any, page_path: Path) -> Path:
    """The jobs one after the other, and one page with all of their reports."""
    from headrace.spark.jobs import run_job
    from headrace.spark.jobs.report import page

    reports = []

    def job(name: str, label: str, **more: Any) -> Any:
        say(f"headrace pipeline run {name}")
        report = run_job(name, server=url, spark=spark, topics=[TOPIC], out=str(tables / label), **more)
        report.job = label
        reports.append(report)
        return report

    job("archive", "archive")
    job("latency", "latency")
    job("dead-letters", "dead-letters")
    again = {"where": "error LIKE '%warehouse%' OR error LIKE '%connection reset%'"}
    job("redrive", "redrive-dry-run", **again, dry_run=True)
    redriven = job("redrive", "redrive", **again).figures["redriven"]
    say("the warehouse is repaired; the workers take what came back")
    with workers(url, repaired=True):
        books = settled(url)
    job("dead-letters", "dead-letters-afterwards")
    orders = books["published"] - redriven
    intro = (
        f"{orders:,} orders, {books['acked']:,} acked in the end. Orders with an expired card stay dead; what the"
        " warehouse and the network had failed was redriven and worked off."
    )
    page_path.write_text(page("Orders: from publish to redrive", reports, intro))
    say(f"the report: {page_path.as_uri()}")
    return page_path


if __name__ == "__main__":
    main()
