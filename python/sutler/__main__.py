"""The `sutler` command."""

import signal
import sys

from sutler import _sutler

#: The exit code for wrong arguments.
WRONG_ARGUMENTS = 2


def main() -> int:
    """Runs the command line; the exit code is 0 when done, 1 when the job failed, 2 for wrong arguments."""
    # The command runs outside of Python, where nobody would look at a KeyboardInterrupt: let Ctrl-C just end it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _sutler.command_line(sys.argv[1:], sys.executable)
    # Some arguments are looked at by what carries the command out, which is loaded only then.
    analysis = sys.modules.get("sutler.analysis.command")
    return WRONG_ARGUMENTS if analysis is not None and analysis.Outcome.wrong_argument else code


if __name__ == "__main__":
    sys.exit(main())
