"""Python's fork server, made to delete its socket when nobody needs it any more.

Whoever starts the server makes a folder with the socket it listens on, and deletes both at its end. A program that is
killed deletes nothing. The server outlives it for a moment: it ends once all its clients have, in whatever way. So it
is asked to import one module more, which has it delete the socket then.
"""

from __future__ import annotations

import os
from multiprocessing import forkserver
from typing import Any

PRELOAD = "sutler._fork_server_end"


def start() -> str | None:
    """Starts the fork server unless it runs; returns the path of its socket, where that is known.

    A server that somebody started before knows nothing of our module, so a worker should also be told of the path.
    """
    server = _server()
    modules = getattr(server, "_preload_modules", None)
    if isinstance(modules, list) and PRELOAD not in modules:
        forkserver.set_forkserver_preload([*modules, PRELOAD])
    forkserver.ensure_running()
    return address()


def address() -> str | None:
    """The path of the socket on which this process knows the fork server to listen."""
    found = getattr(_server(), "_forkserver_address", None)
    return found if isinstance(found, str) and os.path.isabs(found) else None


def _server() -> Any:
    return getattr(forkserver, "_forkserver", None)
