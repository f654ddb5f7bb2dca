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
import time

SHARED = "/dev/shm"
NOTE = "__KMP_REGISTERED_LIB_"
TRACKER = b"multiprocessing.resource_tracker"
LAST_WORK = 1.0
"""Seconds that trackers may take once all whom they track are gone."""


def end(groups: set[int]) -> None:
    """Kill process groups, and clear up behind them. Python's trackers are the last to go: they
    take away the locks and the shared memory that their killed processes left, and end.
    """
    found: set[int] = set()
    trackers: set[int] = set()
    for group in groups:
        inside = members(group)
        found |= inside
        if last := {pid for pid in inside if tracks(pid)}:
            trackers |= last
            for pid in inside - last:  # while they are there, none of these numbers is another's
                kill(pid)
        else:
            kill(-group)
    until = time.monotonic() + LAST_WORK
    while any(tracks(pid) for pid in trackers) and time.monotonic() < until:
        time.sleep(0.005)
    for group in groups if trackers else ():
        kill(-group)
    clear(found)


def kill(number: int) -> None:
    """A process, or a group by its negative number; what has ended is no error."""
    try:
        os.kill(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def tracks(pid: int) -> bool:
    """Whether a running process takes away what others leave."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return TRACKER in file.read()
    except OSError:
        return False


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
    end(groups)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if "apart" in sys.argv[2:] and os.fork():
        sys.exit()
    guard(sys.argv[1])
