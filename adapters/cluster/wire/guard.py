"""A process of its own that ends what a killed driver leaves: run as a script, it imports nothing.

    guard.py FOLDER [apart]

Lines on its input name what to end: `add 123`, `remove 123` (process groups). When its input ends
unannounced, it kills the groups that are left, and removes the folder and what they left in shared
memory. `apart`: it is nobody's child then, for a process whose children another one ends.
"""

import os
import shutil
import signal
import sys

SHARED = "/dev/shm"


def clear(pids: set[int]) -> None:
    """Remove what Intel's OpenMP, which vLLM loads on a processor, notes in shared memory for its
    process, and leaves there when that is killed. The processes have ended."""
    names = tuple(f"__KMP_REGISTERED_LIB_{pid}_" for pid in pids)
    found = os.listdir(SHARED) if os.path.isdir(SHARED) else []
    for name in found:
        if name.startswith(names):
            try:
                os.unlink(os.path.join(SHARED, name))
            except OSError:
                continue  # another one removed it


def members(group: int) -> set[int]:
    """Processes of a group, its leader's number included, which may have ended. Linux; elsewhere
    that alone."""
    found = {group}
    try:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getpgid(int(name)) == group:
                    found.add(int(name))
            except ProcessLookupError:
                continue  # it has just ended
    except OSError:
        return found
    return found


def guard(folder: str) -> None:
    """Read until the input ends, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        order, _, group = line.strip().partition(" ")
        (groups.add if order == "add" else groups.discard)(int(group))
    ended: set[int] = set()
    for group in groups:
        ended |= members(group)
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    clear(ended)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if "apart" in sys.argv[2:] and os.fork():
        sys.exit()
    guard(sys.argv[1])
