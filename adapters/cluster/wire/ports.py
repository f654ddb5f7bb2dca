"""Ports that are held: a number alone may be taken by the next who asks."""

from __future__ import annotations

import socket


def hold() -> socket.socket:
    """A TCP socket bound to a free port of all interfaces, which no other `hold` gets.

    Nothing listens yet. Whoever takes it over may listen on it, or bind the same port with
    SO_REUSEPORT before this one is closed.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reuse = getattr(socket, "SO_REUSEPORT", None)
    held.bind(("", 0))
    if reuse is not None:  # after the bind: before it, the system may give one port twice
        held.setsockopt(socket.SOL_SOCKET, reuse, 1)
    return held
