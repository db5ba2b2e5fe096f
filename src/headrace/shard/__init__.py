"""The host of state: takes commands, decides, appends, folds, and lets replies leave when they are durable."""

from headrace.shard.core import Core, Done
from headrace.shard.verifying import Problem, Report, verify

__all__ = ["Core", "Done", "Problem", "Report", "verify"]
