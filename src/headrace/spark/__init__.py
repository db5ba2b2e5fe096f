"""Headrace and Apache Spark: the log and the queue as sources and sinks, tables of what happened, and the jobs.

session      a Spark session that finds Java and knows ``format("headrace")``
register     the data source for a session that exists already
read         a batch DataFrame of a log: sealed files by Spark's own reader, the rest from the broker
settle       nack, reject or release rows of the queue view
package      this package as a zip for executors
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.hybrid import read
    from headrace.spark.sessions import package, register, session
    from headrace.spark.verdicts import settle

__all__ = ["package", "read", "register", "session", "settle"]

_PLACES = {
    "package": "headrace.spark.sessions",
    "read": "headrace.spark.hybrid",
    "register": "headrace.spark.sessions",
    "session": "headrace.spark.sessions",
    "settle": "headrace.spark.verdicts",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"headrace.spark has no {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
