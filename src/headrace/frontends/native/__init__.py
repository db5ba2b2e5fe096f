"""The native protocol's door: sockets around ``headrace.wire.native``."""

from headrace.frontends.native.door import NativeDoor

__all__ = ["NativeDoor"]
