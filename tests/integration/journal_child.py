"""The process that is killed: appends numbered frames and reports, through stdout, which are confirmed.

    journal_child.py DIRECTORY SEED [lies]

It opens the journal, prints ``open NEXT`` (the number of the first frame it will write), then ``sure NEXT`` after each
commit: all frames before NEXT are confirmed. A refusal is printed as ``refused CODE MESSAGE``; ``full`` means
publishing was refused for want of room, and it goes on with settlements. One that ``lies`` confirms without syncing: a
test of tests.
"""

from __future__ import annotations

import random
import sys
import threading

from headrace.errors import HeadraceError, StorageFull
from headrace.journal import DiskJournal
from headrace.journal.files import RealFiles

SETTLEMENT = 9


def body_of(number: int) -> bytes:
    """Every frame's body follows from its number, so that the oracle needs no copy."""
    return b"%d " % number + bytes([number % 251]) * (number * 7919 % 900)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Liar(RealFiles):
    """Says it has synced."""

    def sync_data(self, handle: int) -> None:
        pass


def main(directory: str, seed: int, *, lies: bool) -> None:
    rng = random.Random(seed)
    journal = DiskJournal.open(directory, files=Liar() if lies else None, file_size_bytes=1 << 16)
    number = 0
    for frame in journal.read():
        number = int(bytes(frame.body).split(b" ")[0]) + 1
    say(f"open {number}")
    threads = rng.randint(0, 3)
    full = False
    while True:
        for _ in range(rng.randint(1, 30)):
            try:
                journal.append(1, body_of(number))
            except StorageFull:
                if not full:
                    say("full")
                full = True
                journal.append(SETTLEMENT, body_of(number), reserve=True)
            number += 1
        waiting = [threading.Thread(target=journal.commit) for _ in range(threads)]
        for thread in waiting:
            thread.start()
        journal.commit()
        for thread in waiting:
            thread.join()
        say(f"sure {number}")
        if rng.random() < 0.02:
            journal.save_snapshot(journal.end_position, b"%d" % number)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), lies="lies" in sys.argv[3:])
    except HeadraceError as error:
        say(f"refused {error.code} {error}")
        sys.exit(3)
