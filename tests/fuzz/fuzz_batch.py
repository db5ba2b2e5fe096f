"""Coverage-guided fuzzing of `Batch.decode`; not part of the suite, needs atheris.

python tests/fuzz/fuzz_batch.py -max_total_time=60 tests/corpus/batch/valid
"""

from __future__ import annotations

import struct
import sys

import google_crc32c

from headrace.batch import Batch
from headrace.errors import HeadraceError

try:
    import atheris
except ImportError:  # pragma: no cover - it has no wheel for every Python
    sys.exit("atheris is not installed; pip install atheris")


def one(data: bytes) -> None:
    """As it is, and with length and checksum made right so that the columns are reached."""
    raw = bytearray(data)
    if len(raw) >= 56:
        struct.pack_into("<2sBB", raw, 0, b"HB", 1, 0)
        struct.pack_into("<I", raw, 8, len(raw))
        head = 56 if raw[4] & 1 else 40
        struct.pack_into("<I", raw, head - 4, google_crc32c.value(bytes(raw[head:] + raw[: head - 4])))
    for candidate in (data, bytes(raw)):
        try:
            batch = Batch.decode(candidate)
        except HeadraceError:
            continue
        batch.messages()
        batch.key_hashes()
        if batch.to_bytes() != candidate:
            raise AssertionError("a batch is not the bytes it was read from")


if __name__ == "__main__":
    atheris.instrument_all()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
