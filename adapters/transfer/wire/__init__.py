"""What all transfers share: whole tensors, buckets, bounded waits, the driver's protocol."""

from hexpo.adapters.transfer.wire.buckets import Packer, unpacked
from hexpo.adapters.transfer.wire.driver import Build, Rendezvous, SendAndLoad, Sender
from hexpo.adapters.transfer.wire.stream import whole
from hexpo.adapters.transfer.wire.waiting import wait_until

__all__ = [
    "Build",
    "Packer",
    "Rendezvous",
    "SendAndLoad",
    "Sender",
    "unpacked",
    "wait_until",
    "whole",
]
