"""Memory of the log-prob pass, measured in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = """
import sys
import torch
from hexpo.adapters.models.distributions import Compared, one_pass, top
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import load_kernels

torch.set_num_threads(1)
tokens, chunk = int(sys.argv[1]), int(sys.argv[2])
kernels = load_kernels(head_dim=16, group=1, native=False)
hidden = torch.randn(tokens, 8).bfloat16().requires_grad_()
weight = torch.randn(49152, 8).bfloat16().requires_grad_()
labels = torch.randint(0, 49152, (tokens,))
head = Head(weight_VH=weight, kernels=kernels, temperature=1.0, chunk=chunk)
loss, _ = head.one_pass(hidden, labels, lambda span, policy, entropy: policy.sum())
loss.backward()
policy, entropy = head.two_pass(hidden, labels)
(policy.sum() + entropy.sum()).backward()
kept, ids = top(head, hidden[:1], 8)
kept, ids = kept.expand(tokens, 8), ids.expand(tokens, 8)
asked = Compared(
    ids={"policy_topk": ids},
    whole="policy_logprobs",
    other="reference_logprobs",
    other_MH=hidden.detach(),
    other_head=head,
)
def gap(span, seen):
    near = (seen["policy_topk"] - kept[span]).square().sum()
    return near + (seen["policy_logprobs"] - seen["reference_logprobs"]).square().mean()
if chunk < 1024:
    loss, _ = one_pass(head, hidden, labels, gap, asked)
    loss.backward()
status = open("/proc/self/status").read()  # ru_maxrss would count the parent's peak
print(int(status.split("VmHWM:")[1].split()[0]) / 2**10)
"""


def _peak_mebibytes(tokens: int, chunk: int) -> float:
    command = [sys.executable, "-c", _SCRIPT, str(tokens), str(chunk)]
    # Tensors in mappings of their own: the peak is then what lives, not how the heap is cut up.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576"}
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100, env=environment
    )
    return float(found.stdout)


def test_the_peak_grows_with_the_chunk_and_not_with_the_tokens() -> None:
    """I1: 1,024 tokens x 49,152 ids are 192 MiB of fp32 logits, and the plain way holds several
    such tensors at once; in chunks of 64, sixteen times the tokens cost nothing, nor where whole
    distributions are compared."""
    chunk = _peak_mebibytes(64, 64)
    assert _peak_mebibytes(1024, 64) < chunk + 40
    assert _peak_mebibytes(1024, 1024) > chunk + 400
