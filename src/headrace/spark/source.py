"""``format("headrace")``: the face Spark sees. What it does is in the rooms beside it, by what the options ask for.

view=log     (the default)     ``log_reader``, ``log_stream``    replayable: offsets of the log
view=queue   (streams)         ``queue_stream``                  leased: settled when Spark commits
table=…      (batch)           ``tables``                        events, dead letters, groups, topics, stats
write                          ``sink``
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from headrace.errors import InvalidArgument
from headrace.spark.options import ReadOptions, WriteOptions
from headrace.spark.rows import Layout, columns_for

__all__ = ["HeadraceSource"]


class HeadraceSource(DataSource):
    """A broker as batch source, stream source, batch sink and stream sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        options = self._reading(streaming=False, any_kind=True)
        if options.table is not None:
            from headrace.spark.tables import ddl

            return ddl(options.table)
        return self._layout(options).ddl

    def _reading(self, *, streaming: bool, any_kind: bool = False) -> ReadOptions:
        return ReadOptions.parse(dict(self.options), streaming=streaming, any_kind=any_kind)

    def _layout(self, options: ReadOptions) -> Layout:
        names = columns_for(
            headers=options.include_headers,
            queue=options.view == "queue",
            gaps=not options.fail_on_data_loss,
            chosen=options.columns,
        )
        return Layout(names)

    def reader(self, schema: Any) -> DataSourceReader:
        options = self._reading(streaming=False)
        if options.table is not None:
            from headrace.spark.tables import TableReader

            return TableReader(options)
        from headrace.spark.log_reader import LogReader, PrunedLogReader

        kind = PrunedLogReader if options.push_filters else LogReader
        return kind(options, self._checked(options, schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        options = self._reading(streaming=True)
        if options.table is not None:
            raise InvalidArgument(f"table={options.table} is for batch reads; a stream reads view=log or view=queue")
        layout = self._checked(options, schema)
        if options.view == "queue":
            from headrace.spark.queue_stream import QueueStream

            return QueueStream(options, layout)
        from headrace.spark.log_stream import LogStream

        return LogStream(options, layout)

    def _checked(self, options: ReadOptions, schema: Any) -> Layout:
        """A schema given by hand may only repeat what there is; fewer columns are asked for with ``columns``."""
        layout = self._layout(options)
        if list(schema.fieldNames()) != list(layout.names):
            raise InvalidArgument(
                f"the schema given has the columns {', '.join(schema.fieldNames())}; with these options there are"
                f" {', '.join(layout.names)}: leave schema() out, and choose columns with the option columns"
            )
        return layout

    @cached_property
    def _writing(self) -> WriteOptions:
        return WriteOptions.parse(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from headrace.spark.sink import BatchSink

        if overwrite:
            raise InvalidArgument("a topic cannot be overwritten, only added to: use mode('append')")
        return BatchSink(self._writing, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 # Spark's name
        from headrace.spark.sink import StreamSink

        if overwrite:
            raise InvalidArgument("a topic cannot be overwritten: use outputMode('append') or ('update')")
        return StreamSink(self._writing, schema)
