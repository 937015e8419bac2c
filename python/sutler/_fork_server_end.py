"""Imported by Python's fork server, and by nobody else: deletes the server's socket when the server ends."""

from __future__ import annotations

import atexit
import contextlib
import os
from pathlib import Path

from sutler import _fork_server


def delete_socket(server: int) -> None:
    """Deletes the socket of a fork server, and its folder where nothing else is in it."""
    path = _fork_server.address()
    if (
        path is None or os.getpid() != server
    ):  # what the server forks ends without this, unless somebody insists
        return
    with contextlib.suppress(OSError):  # the program that started the server has usually deleted it
        Path(path).unlink()
    with contextlib.suppress(OSError):
        Path(path).parent.rmdir()


atexit.register(delete_socket, os.getpid())
