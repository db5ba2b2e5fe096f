"""The HTTP door: sockets, JSON and streams around the broker's calls."""

from headrace.frontends.http.door import HttpDoor

__all__ = ["HttpDoor"]
