"""``python -m mneme`` and the command ``mneme``: the program of the C++ library."""

import signal
import sys

from . import _core


def main() -> int:
    """Runs the program with this process's arguments; its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the program looks after Ctrl-C itself
    return _core.run_program(["mneme", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
