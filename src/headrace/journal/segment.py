"""What a round is made of before it is written: the open file and the frames gathered for it."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["OpenFile", "Segment"]


class OpenFile:
    """One journal file. ``named`` once its first commit is durable; until then it lies under a spare's name."""

    __slots__ = ("first_position", "handle", "named", "path", "size_bytes")

    def __init__(self, first_position: int, size_bytes: int, path: str, handle: int, *, named: bool) -> None:
        self.first_position = first_position
        self.size_bytes = size_bytes
        self.path = path
        self.handle = handle
        self.named = named


class Segment:
    """The part of a round that goes to one file: one commit. ``parts[i + lead]`` is the frame at ``positions[i]``."""

    __slots__ = ("file", "lead", "parts", "position", "positions")

    def __init__(self, file: OpenFile, position: int, lead: list[bytes | list[bytes]]) -> None:
        self.file = file
        self.position = position
        self.lead = len(lead)
        self.parts = lead
        self.positions: list[int] = []

    def frame(self, position: int) -> bytes | None:
        at = bisect_left(self.positions, position)
        if at == len(self.positions) or self.positions[at] != position:
            return None
        part = self.parts[at + self.lead]
        return part if isinstance(part, bytes) else b"".join(part)

    def buffers(self) -> list[bytes]:
        """Small frames joined into one, large ones as they are."""
        if len(self.parts) == 2 and type(self.parts[1]) is bytes:  # a commit record and one small frame
            return [b"".join(self.parts)]  # type: ignore[arg-type]  # the record is bytes as well
        joined: list[bytes] = []
        small: list[bytes] = []
        for part in self.parts:
            if isinstance(part, bytes):
                small.append(part)
            else:
                joined.append(b"".join(small))
                joined.extend(part)
                small = []
        joined.append(b"".join(small))
        return joined
