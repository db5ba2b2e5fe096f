"""Payloads as a JSON schema wants them, and what is wrong with the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["checked"]


def checked(messages: DataFrame, schema: Any) -> DataFrame:
    """The messages with a column ``problems``: an array of (path, rule, problem), empty where all is well.

    A payload that is no JSON at all has one problem with the rule ``json``.
    """
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    text = json.dumps(schema)
    names = ("path", "rule", "problem")
    problems = ArrayType(StructType([StructField(name, StringType()) for name in names]))

    def work(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from headrace.spark.transforms.json_schema import compiled

        check = compiled(json.loads(text))
        kind = pa.list_(pa.field("element", pa.struct([(name, pa.string()) for name in names])))
        for record in records:
            found = [_problems(check, value) for value in record.column("value").to_pylist()]
            yield record.append_column("problems", pa.array(found, kind))

    return messages.mapInArrow(work, StructType([*messages.schema.fields, StructField("problems", problems)]))


def _problems(check: Any, value: bytes | None) -> list[dict[str, str]]:
    try:
        parsed = json.loads(value or b"")
    except (ValueError, RecursionError):
        return [{"path": "$", "rule": "json", "problem": "is no JSON"}]
    try:
        return [{"path": path, "rule": rule, "problem": text} for path, rule, text in check(parsed)]
    except RecursionError:
        return [{"path": "$", "rule": "json", "problem": "is nested too deeply"}]
