"""Partition logs: where each message lies, and how to read the past."""

from headrace.log.frames import FACTS, MANIFEST, JournalFrames
from headrace.log.hot import HotTail
from headrace.log.partition import PartitionLog

__all__ = ["FACTS", "MANIFEST", "HotTail", "JournalFrames", "PartitionLog"]
