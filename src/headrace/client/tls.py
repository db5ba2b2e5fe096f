"""TLS around a line's bytes, without a socket: what is to be sent goes in, what is to be written comes out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

__all__ = ["Plain", "Secured", "client_context"]

_RECORD_BYTES = 64 * 1024


def client_context(ca_file: str | Path | None, *, verify: bool = True) -> ssl.SSLContext:
    """Trusts the system's authorities, or those in ``ca_file``; TLS 1.2 or newer."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:
        raise InvalidArgument(f"ca_file {str(ca_file)!r}: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Plain:
    """No TLS: bytes are bytes."""

    ready = True

    def begin(self) -> bytes:
        return b""

    def seal(self, buffers: Iterable[Any]) -> bytes:
        return b"".join(buffers)

    def open(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""


class Secured:
    """One TLS connection. ``ready`` once the handshake is over; errors of the peer's certificate are `ssl.SSLError`."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        import ssl

        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._want_read = ssl.SSLWantReadError
        self.ready = False

    def begin(self) -> bytes:
        """The first bytes of the handshake."""
        self._shake()
        return self._out.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except self._want_read:
            return
        self.ready = True

    def seal(self, buffers: Iterable[Any]) -> bytes:
        """What to write for what is to be sent."""
        data = memoryview(b"".join(buffers))
        while data:
            data = data[self._tls.write(data) :]
        return self._out.read()

    def open(self, data: bytes) -> tuple[bytes, bytes]:
        """What was said by what was read, and what is to be written in return."""
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        if not self.ready:
            self._shake()
            if not self.ready:
                return b"", self._out.read()
        plain: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(_RECORD_BYTES)
            except self._want_read:
                break
            if not piece:
                break
            plain.append(piece)
        return b"".join(plain), self._out.read()
