"""Lets Ctrl-C end the `sutler` command without a traceback also while this package is being imported.

`sutler.__main__` does so for the command itself, but all of the package is imported before that runs, which takes a
moment. So this has to be the first thing that the package imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _is_command() -> bool:
    """Whether this process looks like `sutler …` or `python -m sutler …`."""
    if threading.current_thread() is not threading.main_thread():
        return False  # others have no say in signals
    name = sys.argv[0] if sys.argv else ""  # an embedded interpreter may have none
    if name == "-m":  # so called until the module is found, and then by its path
        return "sutler" in sys.orig_argv
    return os.path.basename(name) in ("sutler", "sutler.exe")


#: What Ctrl-C did before; none where it is not ours to say.
_before = signal.signal(signal.SIGINT, signal.SIG_DFL) if _is_command() else None


def done() -> None:
    """The package is imported: whatever program this is decides on Ctrl-C itself from here on."""
    if _before is not None:
        signal.signal(signal.SIGINT, _before)
