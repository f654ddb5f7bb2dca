"""A process of its own that ends what a killed driver leaves: run as a script, it imports nothing.

    guard.py FOLDER [apart]

Lines on its input name what to end: `add 123`, `remove 123` (process groups). When its input ends
unannounced, it kills the groups that are left and removes the folder. `apart`: it is nobody's child
then, for a process whose children another one ends.
"""

import os
import shutil
import signal
import sys


def guard(folder: str) -> None:
    """Read until the input ends, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        order, _, group = line.strip().partition(" ")
        (groups.add if order == "add" else groups.discard)(int(group))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if "apart" in sys.argv[2:] and os.fork():
        sys.exit()
    guard(sys.argv[1])
