"""What went wrong inside Spark, in a sentence: an error crosses a worker, the JVM and the driver, and grows."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["told"]

_OURS: Final = re.compile(r"headrace\.errors\.(\w+): (.+)")
_PYTHON: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_NOISE: Final = ("Py4JJavaError", "PythonException", "SparkException", "StreamingQueryException")
_LONG: Final = 600


def told(error: BaseException) -> str:
    """The sentence of ours if there is one in it, else the innermost that Python said, else the first line.

    >>> told(RuntimeError("Job aborted\\n  File x\\nheadrace.errors.UnknownTopic: topic 'a' does not exist\\n at java"))
    "topic 'a' does not exist"
    """
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1]).strip()[:_LONG]
    said = [found for found in _PYTHON.findall(text) if found[0] not in _NOISE]
    if said:
        return f"Spark failed: {said[-1][0]}: {said[-1][1].strip()}"[:_LONG]
    lines = text.strip().splitlines()
    return f"Spark failed: {type(error).__name__}: {lines[0] if lines else ''}"[:_LONG]
