"""The durable record of a shard: an endless stream of frames, in memory or on a disk."""

from headrace.journal.contract import Journal, JournalFile, JournalStats
from headrace.journal.disk import DiskJournal
from headrace.journal.files import FileLayer, RealFiles
from headrace.journal.frame import Frame
from headrace.journal.frozen import FrozenJournal
from headrace.journal.memory import MemoryJournal
from headrace.journal.salvage import Finding, salvage, verify

__all__ = [
    "DiskJournal",
    "FileLayer",
    "Finding",
    "Frame",
    "FrozenJournal",
    "Journal",
    "JournalFile",
    "JournalStats",
    "MemoryJournal",
    "RealFiles",
    "salvage",
    "verify",
]
