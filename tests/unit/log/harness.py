"""A broker on a disk with small journal files, whose log is sealed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from headrace.clock import ManualClock
from headrace.config import SealConfig
from headrace.journal import DiskJournal, FileLayer
from headrace.log.store import LocalStore
from headrace.shard.sealing import Round, Sealer
from unit.broker.harness import SECOND, World

FILE_BYTES = 64 * 1024
DAY = 86_400


class SealedWorld(World):
    """``seal()`` seals all that is durable; ``seal(everything=False)`` whole journal files only."""

    def __init__(
        self,
        directory: Path | str,
        *,
        files: FileLayer | None = None,
        archive: str | None = None,
        clock: ManualClock | None = None,
        behind_bytes: int = 0,
        store: bool = True,
    ) -> None:
        self.directory = str(directory)
        journal = DiskJournal.open(self.directory, file_size_bytes=FILE_BYTES, files=files)
        super().__init__(
            journal,
            clock,
            store=LocalStore(f"{directory}/log", files) if store else None,
            archive=LocalStore(archive, files) if archive is not None else None,
        )
        config = SealConfig(behind_bytes=behind_bytes)
        self.told: list[str] = []
        self.sealer = Sealer(
            self.core, self.port.host.run, config, self.clock, lambda level, event, **more: self.told.append(event)
        )

    def seal(self, *, everything: bool = True) -> Round:
        return self.sealer.round(everything=everything)

    def pid(self, topic: str, partition: int = 0) -> int:
        return self.core.state.by_name["default", topic].partitions[partition].pid

    def log(self, topic: str, partition: int = 0) -> Any:
        return self.core.log(self.pid(topic, partition))

    def read(self, topic: str, **arguments: Any) -> list[tuple[int, bytes]]:
        """(offset, value) of everything a read gives, going on to its end."""
        found: list[tuple[int, bytes]] = []
        more: dict[str, Any] = {"partition": 0, **arguments}
        while True:
            result, batches = self.call("read", topic=topic, **more)
            for batch in batches:
                found += zip(batch.offsets(), batch.values(), strict=True)
            [part] = result["parts"]
            if part["next_offset"] >= part["end_offset"]:
                return found
            more |= {"from_offset": part["next_offset"], "to_offset": part["end_offset"]}

    def parquet(self) -> list[Path]:
        return sorted(Path(self.directory).glob("log/messages/**/*.parquet"))

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """What DuckDB, which knows nothing of Headrace, answers about the tables ``messages`` and ``events``."""
        for table in ("messages", "events"):
            files = f"{self.directory}/log/{table}/**/*.parquet"
            query = query.replace(f"FROM {table}", f"FROM read_parquet('{files}', hive_partitioning = true)")
        rows: list[tuple[Any, ...]] = duckdb.sql(query).fetchall()
        return rows

    def crash(self) -> None:
        """Let go of the disk without saying goodbye."""
        self.journal._release_handles()  # type: ignore[attr-defined]


def days(seconds: float) -> int:
    return int(seconds * DAY * SECOND)


__all__ = ["DAY", "FILE_BYTES", "SECOND", "SealedWorld", "days"]
