"""How many processor threads the operations of one Python thread take."""

from __future__ import annotations

import threading

import torch


def use_threads(count: int) -> None:
    """Operations that the calling thread starts take so many threads; other threads keep theirs.

    torch keeps the number once a thread, and once for threads that are yet to begin. Setting one
    sets the other, so a thread that ends at once puts that back.
    """
    others = torch.get_num_threads()
    if count == others:
        return
    torch.set_num_threads(count)
    restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
    restoring.start()
    restoring.join()
