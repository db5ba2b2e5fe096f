"""Helpers for tests of Headrace and of what is built on it."""

from headrace.testing.disk import Fault, PowerCut, SimulatedDisk
from headrace.testing.ledger import JournalLedger, Violation

__all__ = ["Fault", "JournalLedger", "PowerCut", "SimulatedDisk", "Violation"]
