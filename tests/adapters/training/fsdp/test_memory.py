"""Memory of the log-prob pass, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import resource, sys, threading, time
import torch
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import load_kernels

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize()

torch.set_num_threads(1)
tokens, chunk = int(sys.argv[1]), int(sys.argv[2])
kernels = load_kernels(head_dim=16, group=1, native=False)
hidden = torch.randn(tokens, 8).bfloat16().requires_grad_()
weight = torch.randn(49152, 8).bfloat16().requires_grad_()
labels = torch.randint(0, 49152, (tokens,))
head = Head(weight_VH=weight, kernels=kernels, temperature=1.0, chunk=chunk)
base, peak, stop = resident(), [0], []

def watch():
    while not stop:
        peak[0] = max(peak[0], resident())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
loss, _ = head.one_pass(hidden, labels, lambda span, policy, entropy: policy.sum())
loss.backward()
policy, entropy = head.two_pass(hidden, labels)
(policy.sum() + entropy.sum()).backward()
stop.append(1)
watcher.join()
print((peak[0] - base) / 2**20)
"""


def _mebibytes(tokens: int, chunk: int) -> float:
    command = [sys.executable, "-c", _SCRIPT, str(tokens), str(chunk)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return float(found.stdout)


def test_the_peak_grows_with_the_chunk_and_not_with_the_tokens() -> None:
    """I1: 1,024 tokens x 49,152 ids are 192 MiB of fp32 logits, and the plain way holds several
    such tensors; chunks of 64 (12 MiB each) stay far below one, for any number of tokens."""
    few, many = _mebibytes(256, 64), _mebibytes(1024, 64)
    assert many < 130
    assert many < few + 40
