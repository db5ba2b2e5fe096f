"""Found by Spark: top-level modules named ``pyspark_…`` with a ``DefaultSource`` are data sources by that fact."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
