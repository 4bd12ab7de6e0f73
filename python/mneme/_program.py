"""The program of this package, for what runs in a process of its own."""

import sys


def command(*arguments: str) -> list[str]:
    """The command line of ``mneme`` by this interpreter."""
    return [sys.executable, "-m", "mneme", *arguments]
