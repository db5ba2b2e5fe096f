"""Partition logs: where each message lies, and how to read the past."""

from headrace.log.hot import HotTail, PartitionLog

__all__ = ["HotTail", "PartitionLog"]
