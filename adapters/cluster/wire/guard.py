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
NOTE = "__KMP_REGISTERED_LIB_"


def clear(killed: set[int]) -> None:
    """Remove what Intel's OpenMP, which vLLM loads on a processor, notes in shared memory for its
    process, and leaves there when that is killed: the notes of these processes, and of all that
    are gone, because others (Ray's own) may have killed some of a group first."""
    found = os.listdir(SHARED) if os.path.isdir(SHARED) else []
    for name in found:
        pid, _, user = name.removeprefix(NOTE).partition("_")
        if not name.startswith(NOTE) or user != str(os.getuid()) or not pid.isdigit():
            continue
        if int(pid) in killed or not is_there(int(pid)):
            try:
                os.unlink(os.path.join(SHARED, name))
            except OSError:
                continue  # another one removed it


def is_there(pid: int) -> bool:
    """A process has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
