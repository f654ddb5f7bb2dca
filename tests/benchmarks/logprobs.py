"""Log-probs and entropies from hidden states, forward and backward, beside the plain way.

    python tests/benchmarks/logprobs.py [--tokens 4096] [--vocabulary 151936] [--hidden 1024]
                                        [--chunk 512] [--repeats 1] [--precision float32 bfloat16]

The plain way makes all logits, takes log-probs and entropies of them in fp32 and lets autograd go
back. Peaks are what the process grew by, less the gradients of the weight and of the hidden states
that the way itself made (the library adds the weight's to a sum that the trainer holds). Rounds
alternate. The plain way needs about 13 GB at the default size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import Spent, calibrated, median, peak_above, print_table, spent_by, times_as_fast
from torch import Tensor

from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import load_kernels
from hexpo.adapters.models.sums import tie_sum

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Gradients = tuple[Tensor, Tensor]
"""Of hidden states, and of the weight."""


class Case:
    """One precision's inputs, and the two numbers a token whose sum goes backward."""

    def __init__(self, arguments: argparse.Namespace, dtype: torch.dtype) -> None:
        tokens, width, vocabulary = arguments.tokens, arguments.hidden, arguments.vocabulary
        noise = torch.Generator().manual_seed(0)
        self.hidden_TH = torch.randn(tokens, width, generator=noise).to(dtype)
        self.weight_VH = (torch.randn(vocabulary, width, generator=noise) / width**0.5).to(dtype)
        self.labels_T = torch.randint(vocabulary, (tokens,), generator=noise)
        self.pull_T = torch.randn(tokens, generator=noise)
        self.of_entropy_T = 0.01 * torch.randn(tokens, generator=noise)
        self.chunk = arguments.chunk
        self.made = 0
        """Bytes of gradients that the last call made itself."""

    def _leaves(self) -> tuple[Tensor, Tensor]:
        return self.hidden_TH.clone().requires_grad_(), self.weight_VH.detach().requires_grad_()

    def loss(self, policy_T: Tensor, entropy_T: Tensor, span: slice = slice(None)) -> Tensor:
        """A number with a different pull at each token."""
        return (self.pull_T[span] * policy_T + self.of_entropy_T[span] * entropy_T).sum()

    def plain(self) -> Gradients:
        """All logits at once."""
        hidden_TH, weight_VH = self._leaves()
        logits_TV = F.linear(hidden_TH, weight_VH).float()
        lse_T = logits_TV.logsumexp(-1)
        policy_T = logits_TV.gather(-1, self.labels_T[:, None])[:, 0] - lse_T
        entropy_T = lse_T - (logits_TV.softmax(-1) * logits_TV).sum(-1)
        del logits_TV
        self.loss(policy_T, entropy_T).backward()  # type: ignore[no-untyped-call]
        assert hidden_TH.grad is not None
        assert weight_VH.grad is not None
        self.made = hidden_TH.grad.nbytes + weight_VH.grad.nbytes
        return hidden_TH.grad, weight_VH.grad

    def one_pass(self, sum_VH: Tensor) -> Gradients:
        """Ours, for a loss whose tokens stand alone."""
        hidden_TH, head = self._head(sum_VH)
        loss = lambda span, policy_N, entropy_N: self.loss(policy_N, entropy_N, span)  # noqa: E731
        head.one_pass(hidden_TH, self.labels_T, loss)[0].backward()  # type: ignore[no-untyped-call]
        return self._found(hidden_TH, sum_VH)

    def two_pass(self, sum_VH: Tensor) -> Gradients:
        """Ours, for any loss."""
        hidden_TH, head = self._head(sum_VH)
        self.loss(*head.two_pass(hidden_TH, self.labels_T)).backward()  # type: ignore[no-untyped-call]
        return self._found(hidden_TH, sum_VH)

    def _head(self, sum_VH: Tensor) -> tuple[Tensor, Head]:
        hidden_TH, weight_VH = self._leaves()
        tie_sum(weight_VH, sum_VH.zero_())
        kernels = load_kernels(head_dim=64, group=1)
        return hidden_TH, Head(
            weight_VH=weight_VH, kernels=kernels, temperature=1.0, chunk=self.chunk
        )

    def _found(self, hidden_TH: Tensor, sum_VH: Tensor) -> Gradients:
        assert hidden_TH.grad is not None
        self.made = hidden_TH.grad.nbytes
        return hidden_TH.grad, sum_VH


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Print times, peaks and the largest differences of one precision."""
    case = Case(arguments, PRECISIONS[name])
    sums = {way: torch.zeros_like(case.weight_VH, dtype=torch.float32) for way in ("one", "two")}
    ways: dict[str, Callable[[], Gradients]] = {
        "plain": case.plain,
        "one pass": lambda: case.one_pass(sums["one"]),
        "two passes": lambda: case.two_pass(sums["two"]),
    }
    spent: dict[str, list[Spent]] = {way: [] for way in ways}
    peaks: dict[str, int] = {}
    found: dict[str, Gradients] = {}
    for _ in range(arguments.repeats):
        for way, call in ways.items():
            found.pop(way, None)

            def measured(way: str = way, call: Callable[[], Gradients] = call) -> None:
                spent[way].append(spent_by(lambda: found.update({way: call()})))

            peaks[way] = peak_above(measured) - case.made
    base, typical = peaks["plain"], {way: median(taken) for way, taken in spent.items()}
    rows = [
        (
            *(way, typical[way].wall, typical[way].cpu, peaks[way] / 2**20),
            *times_as_fast(typical["plain"], typical[way]),
            f"1/{base / max(peaks[way], 1):.1f}",
            *(f"{gap:.0e}" for gap in _gaps(found[way], found["plain"])),
        )
        for way in ways
    ]
    header = ("way", "wall s", "CPU s", "peak MiB", "wall", "CPU", "memory", "hidden", "weight")
    shape = f"{arguments.tokens:,} tokens x {arguments.vocabulary:,}, hidden {arguments.hidden}"
    print_table(f"{name}: {shape}, chunks of {arguments.chunk}", header, rows)


def _gaps(ours: Gradients, plain: Gradients) -> list[float]:
    """Largest difference of each gradient over its own scale."""
    return [
        float((a.float() - b.float()).abs().max() / b.float().abs().max())
        for a, b in zip(ours, plain, strict=True)
    ]


def main() -> None:
    """Run each precision."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with calibrated():
        for name in arguments.precision:
            compare(name, arguments)


if __name__ == "__main__":
    main()
