"""The unit of data: messages side by side in one checked, columnar buffer. The layout is drawn in `layout`."""

from headrace.batch.batch import Batch
from headrace.batch.check import DEFAULT_LIMITS, HIGHEST_LIMITS, BatchLimits
from headrace.batch.encode import encode, encode_arrow, encode_columns, encode_one, encode_placed, encode_plain
from headrace.batch.message import Message, MessageView

__all__ = [
    "DEFAULT_LIMITS",
    "HIGHEST_LIMITS",
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
