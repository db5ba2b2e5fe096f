"""The bulk work of a queue on Spark: dead letters back to work by a filter, chosen by Spark and moved by the broker."""

from __future__ import annotations

import time
from typing import Any

import headrace
from bench.machine import Machine
from bench.registry import workload
from bench.server_workloads import Server
from bench.spark_workloads import session
from bench.targets import Figure
from headrace.batch import encode_columns
from headrace.calls import Run, Settle

VALUE_BYTES = 200
BATCH = 4_000
LEASED = 10_000
CHOSEN_OF = 5
"""Of so many dead letters in a row all but one are chosen, so that what is moved is no single stretch."""


def dead(port: Any, topic: str, count: int) -> None:
    """So many dead letters, most of which died of a timeout."""
    port.call("topic.create", topic=topic, settings={"max_depth": 0, "ordering": "none", "lease": "10m"})
    batch = encode_columns([b"x" * VALUE_BYTES] * BATCH)
    for _ in range(-(-count // BATCH)):
        port.publish("default", topic, 0, batch)
    consumer = port.consumer("default", topic, "default", consumer="bench")
    died = 0
    while died < count:
        order = Settle(reject=[])
        for each in consumer.receive(LEASED, 10**9):
            first, end = each.batch.base_offset, each.batch.base_offset + each.batch.count
            at = first
            while at < end:
                odd = at % CHOSEN_OF == 0
                stop = at + 1 if odd else min(end, at + CHOSEN_OF - at % CHOSEN_OF)
                run = Run(each.partition, each.lease_id, at, stop - at)
                order.reject.append((run, "card refused" if odd else f"timeout after {at % 977} ms"))
                at = stop
            died += each.batch.count
        refused = consumer.settle(order).refused
        if refused:
            raise RuntimeError(f"not settled: {refused[:3]}")
    consumer.close()


@workload("spark/redrive")
def redrive(machine: Machine) -> dict[str, Figure]:
    """The whole job: Spark reads the dead letters, filters, reports; the broker moves what was chosen, durably."""
    from headrace.spark.jobs import run_job

    count = machine.scaled(1_250_000)
    wanted = count - -(-count // CHOSEN_OF)
    spark = session()
    with machine.directory() as directory:
        server = Server(directory / "data")
        try:
            host, port = server.address()
            url = f"headrace://{host}:{port}"
            with headrace.connect(url) as hr:
                dead(hr.port, "orders", count)
            arguments: dict[str, Any] = {"server": url, "topics": ["orders"], "where": "error LIKE 'timeout%'"}
            began = time.perf_counter()
            dry = run_job("redrive", spark=spark, dry_run=True, **arguments)
            chosen_s = time.perf_counter() - began
            began = time.perf_counter()
            done = run_job("redrive", spark=spark, **arguments)
            whole_s = time.perf_counter() - began
        finally:
            server.stop()
    if not dry.figures["matched"] == done.figures["redriven"] >= wanted:
        raise RuntimeError(f"{done.figures} of {wanted}")
    redriven = done.figures["redriven"]
    return {
        "redriven": Figure(redriven, "letters"),
        "seconds a million": Figure(whole_s / redriven * 1_000_000, "s", at_most=60),
        "dry run, seconds": Figure(chosen_s, "s"),
        "letters a second": Figure(redriven / whole_s, "/s"),
    }
