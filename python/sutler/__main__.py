"""The `sutler` command."""

import signal
import sys

from sutler import _sutler


def main() -> int:
    """Runs the command line; the exit code is 0 when done, 1 when the job failed, 2 for wrong arguments."""
    # The command runs outside of Python, where nobody would look at a KeyboardInterrupt: let Ctrl-C just end it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _sutler.command_line(sys.argv[1:], sys.executable)


if __name__ == "__main__":
    sys.exit(main())
