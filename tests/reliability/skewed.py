"""``headrace`` with a wall clock that is wrong: by the nanoseconds (8 bytes, little-endian) in the file that
``SKEW_FILE`` names, read at every look at the clock. The monotonic clock stays, as it does when somebody sets the time.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time

from headrace.clock import SystemClock


def main() -> int:
    with open(os.environ.pop("SKEW_FILE"), "rb") as file:
        skew = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    def wall_ns() -> int:
        return time.time_ns() + int(struct.unpack_from("<q", skew)[0])

    SystemClock.wall_ns = staticmethod(wall_ns)  # type: ignore[method-assign, assignment]
    from headrace.cli import main as headrace

    return int(headrace() or 0)


if __name__ == "__main__":
    sys.exit(main())
