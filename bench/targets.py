"""What a figure is, and the table of what is promised.

To promise something, measure it in a workload (see ``bench/registry.py``) and put a row into ``TARGETS`` under its
area: what is promised in words, the workload and the name of its figure, the bound, and a probe of the machine that
helps to judge the number (its unit need not be the same). ``python -m bench`` prints each row with what was measured
and whether it was reached, and writes the same to its JSON file under ``targets``. A row whose figure is missing from
a run of its workload is an error of the run.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Figure(NamedTuple):
    """One measured number with its unit and what it should be."""

    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    probe: str | None = None
    ratio_at_least: float | None = None
    ratio_at_most: float | None = None
    note: str = ""

    def ratio(self, probes: dict[str, float]) -> float | None:
        if self.probe is None or not probes.get(self.probe):
            return None
        return self.value / probes[self.probe]

    def reached(self, probes: dict[str, float]) -> bool | None:
        """Whether every target is reached; None without one."""
        ratio = self.ratio(probes)
        checks = [
            self.value >= self.at_least if self.at_least is not None else None,
            self.value <= self.at_most if self.at_most is not None else None,
            ratio >= self.ratio_at_least if self.ratio_at_least is not None and ratio is not None else None,
            ratio <= self.ratio_at_most if self.ratio_at_most is not None and ratio is not None else None,
        ]
        told = [check for check in checks if check is not None]
        return all(told) if told else None


class Target(NamedTuple):
    """One promise. ``beside`` names a probe that is shown with it."""

    what: str
    workload: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    beside: str = ""


TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    "the batch": (
        Target("encode a message of 200 B", "batch/encode_single", "us", at_most=5),
        Target("its overhead", "batch/encode_single", "overhead_bytes", at_most=90),
        Target("encode 1,000, each", "batch/encode_many", "us_per_message", at_most=0.5),
        Target("their overhead, each", "batch/encode_many", "overhead_bytes_per_message", at_most=16),
        Target("with keys", "batch/encode_many", "overhead_bytes_per_message_keyed", at_most=16),
        Target("decode and check one", "batch/decode", "us_one", at_most=5),
        Target("decode and check 1,000, each", "batch/decode", "us_per_message_1000", at_most=0.5),
        Target("1,000 to Arrow", "batch/arrow", "us_to_arrow_1000", at_most=20),
        Target("4,096 to Arrow", "batch/arrow", "us_to_arrow_4096", at_most=20),
        Target("1,000 with every column there is to Arrow", "batch/arrow", "us_to_arrow_every_column", at_most=20),
    ),
    "the journal": (
        Target(
            "durable append of 1,000 x 200 B, pipelined, beside a bare write with a sync per MiB",
            "journal/batches",
            "share of a bare sequential write",
            at_least=0.6,
            beside="write MiB/s",
        ),
        Target("the same, in messages", "journal/batches", "messages", at_least=1_000_000, beside="sync 1 MiB p50 us"),
        Target(
            "durable append of 200 B from one thread, pipelined",
            "journal/singles",
            "messages",
            at_least=150_000,
            beside="sync 1 MiB p50 us",
        ),
        Target(
            "durable append of one message, p50 beside a bare write and sync",
            "journal/one_at_a_time",
            "p50 beside a bare write and sync",
            at_most=1.5,
            beside="sync 200 B p50 us",
        ),
        Target(
            "recovery of 1,000,000 single frames after a kill",
            "journal/recovery",
            "single frames, to the first read",
            at_most=3,
        ),
        Target("in frames of 100", "journal/recovery", "frames of 100, to the first read", at_most=1),
        Target("from a snapshot", "journal/recovery", "from a snapshot, to the first read", at_most=1),
        Target(
            "on disk beside the value, in batches of 1,000",
            "journal/overhead",
            "a message in batches of 1,000",
            at_most=16,
        ),
        Target("of a single message", "journal/overhead", "a single message", at_most=100),
    ),
    "what everything pays": (
        Target("import headrace", "import", "import headrace", at_most=0.15),
        Target("modules of pyarrow after it", "import", "pyarrow modules after it", at_most=0),
        Target("message ids", "ids", "one at a time", at_least=1_000_000),
    ),
    "the delivery core": (
        Target("lease 100 + ack 100, memory journal", "delivery/lease_ack", "lease 100 + ack 100", at_least=3_000_000),
        Target("lease 1 + ack 1", "delivery/lease_ack", "lease 1 + ack 1, one call each", at_least=150_000),
        Target(
            "lease 1 + ack 1, many callers",
            "delivery/lease_ack",
            "lease 1 + ack 1, 64 callers at once",
            at_least=150_000,
        ),
        Target("by key, 10,000 keys, lease 100 + ack 100", "delivery/keys", "lease 100 + ack 100", at_least=500_000),
        Target(
            "random priorities over 1,000,000 ready, lease 100", "delivery/priorities", "lease 100", at_least=500_000
        ),
        Target("1,000,000 at random times of a day: schedule", "delivery/schedule", "schedule", at_least=300_000),
        Target("cancel", "delivery/schedule", "cancel, 500 of 1000 in one call", at_least=300_000),
        Target("fire", "delivery/schedule", "fire", at_least=300_000),
        Target("memory of each", "delivery/schedule", "memory of a scheduled message", at_most=32),
        Target("lateness of a fire when idle, p99", "delivery/lateness", "p99", at_most=5000),
        Target("never early", "delivery/lateness", "earliest", at_least=0),
        Target(
            "memory of 10,000,000 of 1 KB waiting, disk journal",
            "delivery/memory",
            "10,000,000 ready, published in batches of 1,000",
            at_most=150,
        ),
        Target("fan-out to 10 groups", "delivery/fanout", "10 groups", at_least=1_000_000),
        Target(
            "lease 100 + ack 100 with 10 million waiting, beside 10 thousand",
            "delivery/backlog",
            "lease 100 + ack 100, ratio",
            at_most=1.5,
        ),
        Target("lease 1 + ack 1, the same", "delivery/backlog", "lease 1 + ack 1, ratio", at_most=1.5),
        Target(
            "recovery of 1,000,000, half acked one by one",
            "delivery/recovery",
            "published in batches of 100",
            at_most=5,
        ),
        Target("published one by one too", "delivery/recovery", "published one by one", at_most=5),
    ),
    "the log": (
        Target("sealing into Parquet (zstd), a core", "log/seal", "sealed a second of processor", at_least=1_000_000),
        Target(
            "on the disk when sealed, beside 200 B of JSON", "log/seal", "on the disk beside the values", at_most=0.6
        ),
        Target("journal left after that", "log/seal", "journal left unsealed", at_most=1),
        Target(
            "publishing while sealing, beside without",
            "log/publish_while_sealing",
            "publish beside without sealing",
            at_least=0.7,
        ),
        Target("replay of 5,000,000 sealed, as Arrow", "log/past", "replay as Arrow", at_least=2_000_000),
        Target("as deliveries in Python", "log/past", "replay as deliveries", at_least=300_000),
        Target("first message of a time, 10,000,000 kept", "log/past", "first message of a time, sealed", at_most=100),
        Target("trace of a recent message", "log/past", "trace of a recent message", at_most=20),
        Target("trace of a sealed one", "log/past", "trace of a sealed message", at_most=1_000),
        Target(
            "trace of a sealed one with its life",
            "log/past",
            "trace of a sealed message that had a life",
            at_most=1_000,
        ),
        Target(
            "everything acked and nothing kept: Parquet files", "log/nothing_kept", "Parquet files written", at_most=0
        ),
        Target("its journal", "log/nothing_kept", "journal at most", at_most=256),
        Target("count 10,000,000 scheduled", "log/scheduled", "count", at_most=5),
        Target("memory of a process that holds them", "log/scheduled", "resident", at_most=1_024),
    ),
    "a server process": (
        Target("resident memory, idle", "server/idle", "resident, idle", at_most=70),
        Target("an idle connection", "server/idle", "an idle connection", at_most=20),
        Target("resident with 1,000,000 of 1 KB waiting", "server/backlog", "resident, all waiting", at_most=200),
        Target("kill to first delivery of those", "server/backlog", "kill to first delivery", at_most=5),
        Target(
            "one durable publish, beside a bare sync and a round trip",
            "server/publish_one",
            "p50 beside sync and round trip",
            at_most=1.5,
            beside="sync 200 B p50 us",
        ),
        Target("left behind by 5,000 connections", "server/connects", "left behind", at_most=8),
        Target(
            "restart after a kill, small backlog, to the first confirm",
            "server/restart",
            "start to first confirm",
            at_most=0.5,
            beside="sync 4 KiB p50 us",
        ),
    ),
    "the broker in your hand": (
        Target("SDK publish_many, one producer", "sdk/publish_many", "publish_many", at_least=500_000),
        Target("SDK single publishes, pipelined", "sdk/publisher", "single publishes", at_least=80_000),
        Target(
            "SDK, one durable publish, beside a sync and a round trip",
            "sdk/publish_one",
            "p50 beside sync and round trip",
            at_most=1.5,
            beside="sync 200 B p50 us",
        ),
        Target("one durable publish over the network, p50", "sdk/publish_one", "p50", at_most=1_000),
        Target(
            "eight threads that wait for each publish",
            "sdk/publish_threads",
            "eight threads, one at a time each",
            at_least=1_300,
        ),
        Target("lists of 1, each waited for", "sdk/batch_curve", "lists of 1", at_least=320),
        Target("lists of 10", "sdk/batch_curve", "lists of 10", at_least=3_000),
        Target("lists of 50", "sdk/batch_curve", "lists of 50", at_least=15_000),
        Target("lists of 100", "sdk/batch_curve", "lists of 100", at_least=30_000),
        Target("lists of 200", "sdk/batch_curve", "lists of 200", at_least=60_000),
        Target("lists of 500", "sdk/batch_curve", "lists of 500", at_least=130_000),
        Target("lists of 1,000", "sdk/batch_curve", "lists of 1000", at_least=220_000),
        Target(
            "consume and ack one by one, as objects", "sdk/consume", "consume and ack, as it comes", at_least=150_000
        ),
        Target("consume and ack as Arrow", "sdk/consume_arrow", "consume and ack as Arrow", at_least=1_000_000),
        Target("one message of the ready queue, p50", "sdk/receive_one", "p50", at_most=1_000),
        Target("publish to handler at 2,000/s, durable, p50", "sdk/end_to_end", "p50", at_most=3),
        Target("the same, p99", "sdk/end_to_end", "p99", at_most=10, beside="sync 200 B p99 us"),
        Target(
            "published, delivered and acked in order, 1 partition",
            "sdk/partitions",
            "1 partitions, 1 consumers",
            at_least=5_000,
        ),
        Target("the same, 10 partitions", "sdk/partitions", "10 partitions, 10 consumers", at_least=50_000),
        Target("delivered to 10 groups over the network", "sdk/fanout", "delivered to 10 groups", at_least=100_000),
        Target("embedded, memory: publish one by one", "embedded/memory", "publish one by one", at_least=200_000),
        Target("in batches of 1,000", "embedded/memory", "publish in batches of 1,000", at_least=2_000_000),
        Target("consume in batches", "embedded/memory", "consume in batches", at_least=450_000),
        Target("consume with a block each", "embedded/memory", "consume with a block each", at_least=150_000),
        Target("embedded, disk: publish_many of 1,000", "embedded/disk", "publish_many of 1,000", at_least=1_000_000),
        Target("embedded, disk: one durable publish, p50", "embedded/disk", "publish one, p50", at_most=1_000),
    ),
    "HTTP": (
        Target(
            "durable publish, 1 message a request, 64 connections",
            "http/publish",
            "one message a request, 64 connections",
            at_least=10_000,
            beside="sync 4 KiB p50 us",
        ),
        Target("100 messages of 200 B a request", "http/publish", "100 messages a request", at_least=100_000),
        Target("1,000 messages of 200 B a request", "http/publish", "1,000 messages a request", at_least=200_000),
        Target("lease 100 + settle 100", "http/consume", "lease 100 + settle 100", at_least=80_000),
        Target("replay as an Arrow stream", "http/replay", "as an Arrow stream", at_least=300),
        Target(
            "one publish at a time, above a bare sync",
            "http/publish_one",
            "p50 above a bare sync",
            at_most=0.6,
            beside="sync 200 B p50 us",
        ),
        Target("a scrape of 1,000 topics", "http/metrics", "a scrape", at_most=50),
        Target("and what it holds up", "http/metrics", "the longest that another request waits", at_most=10),
    ),
    "MQTT, from outside": (
        Target("QoS 0 fan-in 20 → 1, 200 B, through", "mqtt_server/fan_in", "QoS 0", at_least=60_000),
        Target("QoS 1 fan-in 20 → 1", "mqtt_server/fan_in", "QoS 1", at_least=30_000),
        Target("fan-out 1 → 50, QoS 0", "mqtt_server/fan_out", "QoS 0", at_least=200_000),
        Target("$queue/ publish, QoS 1, durable, 20 publishers", "mqtt_server/queue", "publish", at_least=40_000),
        Target("$queue/ consume and ack one by one, 5.0", "mqtt_server/queue", "consume and ack", at_least=20_000),
        Target("an idle connection", "mqtt_server/idle", "each", at_most=15),
        Target("connects", "mqtt_server/idle", "connects", at_least=2_000),
        Target("a publish among 100,000 filters", "mqtt_server/matching", "new topics", at_most=50),
    ),
    "Spark": (
        Target(
            "5,000,000 sealed of 200 B, all columns, beside Spark's own Parquet reader",
            "spark/sealed",
            "all columns, beside Spark's Parquet",
            at_least=0.8,
        ),
        Target("two columns, the same", "spark/sealed", "two columns, beside Spark's Parquet", at_least=0.8),
        Target(
            "a stream with AvailableNow, 1,000,000 rows a trigger",
            "spark/sealed",
            "AvailableNow, 1,000,000 rows a trigger",
            at_least=1_000_000,
            beside="memcpy GB/s",
        ),
        Target("the live tail, through the server", "spark/tail", "all columns", at_least=1_500_000),
        Target(
            "append to foreachBatch at 1,000/s, p50 beside Spark's rate source",
            "spark/latency",
            "p50 beside Spark's rate source",
            at_most=1.3,
        ),
        Target("durable write into a topic", "spark/write", "rows", at_least=400_000),
        Target("an hour out of ten days, data read", "spark/window", "data read, by option", at_most=2),
        Target("redrive of a million dead letters by a filter", "spark/redrive", "seconds a million", at_most=60),
    ),
}
"""By area. Rows of one area stay together and in the order in which they are read."""


def of_workload(name: str) -> dict[str, Target]:
    """What is promised of a workload's figures."""
    return {target.figure: target for targets in TARGETS.values() for target in targets if target.workload == name}


def targeted(name: str, figures: dict[str, Figure]) -> dict[str, Figure]:
    """The figures of a workload with their bounds; what a workload says itself goes before."""
    promised = of_workload(name)
    return {key: _targeted(figure, promised.get(key)) for key, figure in figures.items()}


def _targeted(figure: Figure, target: Target | None) -> Figure:
    if target is None or figure.at_least is not None or figure.at_most is not None:
        return figure
    return figure._replace(at_least=target.at_least, at_most=target.at_most)


def missing(name: str, figures: dict[str, Figure]) -> list[str]:
    """What is promised of a workload and what its run has no figure for."""
    return [key for key in of_workload(name) if key not in figures]


class Judged(NamedTuple):
    """A promise beside what was measured; ``reached`` is None where nothing was."""

    area: str
    target: Target
    figure: Figure | None
    reached: bool | None


def judged(results: dict[str, dict[str, Figure]], probes: dict[str, float]) -> list[Judged]:
    """Every promise, in the order of the table."""
    rows = []
    for area, targets in TARGETS.items():
        for target in targets:
            figure = results.get(target.workload, {}).get(target.figure)
            rows.append(Judged(area, target, figure, None if figure is None else figure.reached(probes)))
    return rows


def untargeted(name: str) -> Figure:
    """A figure with the unit its name tells."""
    words = name.replace(":", " ").replace("_", " ").split()
    if words[-2:] == ["per", "s"]:
        return Figure(0, "/s")
    for word, unit in (("us", "us"), ("ms", "ms"), ("seconds", "s"), ("bytes", "B"), ("mib", "MiB")):
        if word in words:
            return Figure(0, unit)
    return Figure(0, "")
