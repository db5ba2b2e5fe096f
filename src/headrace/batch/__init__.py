"""The unit of data: messages side by side in one checked, columnar buffer. The layout is drawn in `layout`."""

from headrace.batch.batch import Batch
from headrace.batch.check import DEFAULT_LIMITS, HIGHEST_LIMITS, BatchLimits
from headrace.batch.encode import encode, encode_arrow, encode_columns, encode_one, encode_placed, encode_plain
from headrace.batch.layout import PRODUCER as VALUES_ONLY
from headrace.batch.message import Message, MessageView

# ``batch.columns`` up to this: values, and perhaps a producer; above it there are keys, headers, times or more.

__all__ = [
    "DEFAULT_LIMITS",
    "HIGHEST_LIMITS",
    "VALUES_ONLY",
    "Batch",
    "BatchLimits",
    "Message",
    "MessageView",
    "encode",
    "encode_arrow",
    "encode_columns",
    "encode_one",
    "encode_placed",
    "encode_plain",
]
