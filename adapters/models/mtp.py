"""Heads that predict further tokens, one after the other (DeepSeek-V3, 2412.19437, section 2.2).

Depth k joins what depth k - 1 knows of position j with the embedding of token j + k, runs one more
decoder layer, and predicts token j + k + 1 by the policy's own output layer. Depth 0 is the policy.
So at depth k a token is predicted from all tokens before it, of which the policy has seen those
that are more than k away: what a draft of k further tokens would have to go by.

A depth's rows are those of the depth before without their first token.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import LabelLogprobs
from hexpo.adapters.models.layout import Layout, Ran, Rows, lay_out
from hexpo.adapters.models.policy import Policy
from hexpo.domain.errors import ModelError

FILE = "model.safetensors"
"""The heads' weights, in a folder of their own."""


class DeepForward(Protocol):
    """A packed forward to which layers can be added."""

    def ran(self, rows: Rows, *, detached: bool) -> Ran:
        """Hidden states of selected tokens and of all run ones."""
        ...

    def embed(self, tokens_N: Tensor) -> Tensor:
        """(N, H): what the first layer reads."""
        ...

    def layer(self, layer: Any, x_NH: Tensor, layout: Layout) -> Tensor:
        """(N, H): run tokens through a layer of the model's kind."""
        ...


class Depth(torch.nn.Module):
    """What one depth adds. It begins as the policy's last layer run once more, blind to the token
    that it is told: no weight is drawn."""

    def __init__(self, policy: Policy) -> None:
        """Raises ModelError: the family's decoder has other parts."""
        super().__init__()
        root: Any = policy.module.base_model
        parts = [getattr(root, name, None) for name in ("layers", "norm", "embed_tokens")]
        if any(part is None for part in parts):
            raise ModelError(
                f"{policy.config.model_type}: its decoder has no `layers`, `norm` or `embed_tokens`"
                " to make multi-token heads of"
            )
        # The copied layer asks the policy's own configuration how to attend, not a copy of it.
        self.block = copy.deepcopy(root.layers[-1], {id(policy.config): policy.config})
        self.enorm, self.hnorm, self.norm = (copy.deepcopy(root.norm) for _ in range(3))
        hidden = root.norm.weight.shape[0]
        weight = root.norm.weight
        self.eh_proj = torch.nn.Linear(
            2 * hidden, hidden, bias=False, dtype=weight.dtype, device=weight.device
        )
        with torch.no_grad():
            for norm in (self.enorm, self.hnorm):
                norm.weight.fill_(1.0)
            eye = torch.eye(hidden, dtype=weight.dtype, device=weight.device)
            self.eh_proj.weight.copy_(torch.cat((torch.zeros_like(eye), eye), 1))

    def join(self, embedded_NH: Tensor, hidden_NH: Tensor) -> Tensor:
        """(N, H): the block's input."""
        both = torch.cat((self.enorm(embedded_NH), self.hnorm(hidden_NH)), 1)
        return self.eh_proj(both)  # type: ignore[no-any-return]


@attrs.frozen(kw_only=True, eq=False)
class Guess:
    """What one depth gives to the selected tokens that it reaches."""

    reached_M: Tensor
    """bool: a row's first tokens have too few others before them."""
    logprobs_R: Tensor
    """Log-probs of the tokens that are reached, in order; with gradient."""
    right_R: Tensor
    """bool: the likeliest id is the token that came."""


class MultiToken:
    """The heads of all depths, beside a policy's module and not in it."""

    def __init__(self, policy: Policy, depths: int) -> None:
        """Raises ModelError: see `Depth`."""
        self._policy = policy
        self.module = torch.nn.ModuleList([Depth(policy) for _ in range(depths)])
        self.module.requires_grad_(requires_grad=True)
        self.module.eval()

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """All of them, by depth (from 0) and name."""
        return dict(self.module.named_parameters())

    def guess(
        self, forward: DeepForward, head: Head, rows: Rows, ran: Ran, *, detached: bool
    ) -> Iterator[Guess]:
        """Each depth's guesses at the rows' selected tokens, from depth 1 on.

        Args: head: the policy's; log-probs are at its temperature, a chunk's logits at a time.
            ran: what the policy made of the rows.
            detached: embedding and output layer are constants.
        """
        within_M = _within(rows)[rows.selected_T]
        hidden_NH, layout = ran.hidden_NH, ran.layout
        for number, depth in enumerate(self.module, start=1):
            rows, own_T = without_first(rows, layout)
            before_T, layout = layout.before_T, lay_out(rows)
            if not len(layout.tokens_N):
                return
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detached):
                embedded_NH = forward.embed(layout.tokens_N)
            part: Any = depth
            x_NH = part.join(embedded_NH, hidden_NH[before_T[own_T[layout.chosen_N]]])
            hidden_NH = forward.layer(part.block, x_NH, layout)
            guessed_RH = part.norm(hidden_NH[layout.source_M])
            own = _Draft.of(head, detached=detached)
            logprobs_R, _ = own.two_pass(guessed_RH, rows.labels)
            yield Guess(
                reached_M=within_M > number, logprobs_R=logprobs_R, right_R=torch.cat(own.right)
            )

    def write(self, folder: Path) -> None:
        """The heads' weights in the policy's precision, under the names of DeepSeek-V3's folders:
        depth k is `model.layers.<layers of the policy + k - 1>`, with `enorm`, `hnorm`, `eh_proj`
        (of embedding and hidden state, in this order) and `shared_head.norm` beside the layer's own
        names. Embedding and output layer are the policy's.

        Args: folder: made if missing; one of their own, so that who loads the policy is not met by
            names that it does not know.
        """
        from safetensors.torch import save_file
        from transformers.core_model_loading import revert_weight_conversion

        folder.mkdir(parents=True, exist_ok=True)
        first = int(self._policy.config.num_hidden_layers)
        own = {
            _published(name, first): parameter.detach()
            for name, parameter in self.named_parameters().items()
        }
        with torch.no_grad():
            made = revert_weight_conversion(self._policy.module, own)
        weights = {name: tensor.cpu().contiguous() for name, tensor in made.items()}
        save_file(weights, folder / FILE, metadata={"format": "pt"})


def without_first(rows: Rows, layout: Layout) -> tuple[Rows, Tensor]:
    """Rows without their first tokens, and (T',) which of the old tokens each one is.

    Args: layout: of the rows. Rows that shared a prompt go on to, and no others.
    """
    starts = rows.lengths_S.cumsum(0) - rows.lengths_S
    within_T = _within(rows)
    own_T = (within_T > 0).nonzero()[:, 0]
    second_S = (starts + 1).clamp(max=max(0, len(within_T) - 1))
    shorter = attrs.evolve(
        rows,
        tokens_T=rows.tokens_T[own_T],
        positions_T=rows.positions_T[own_T],
        lengths_S=(rows.lengths_S - 1).clamp(min=0),
        prompt_lengths_S=(rows.prompt_lengths_S - 1).clamp(min=0),
        groups_S=layout.before_T[second_S],  # where a row's first hidden state lies
        selected_T=(rows.selected_T & (within_T > 1))[own_T],
    )
    return shorter, own_T


def _within(rows: Rows) -> Tensor:
    """(T,) each token's place in its row."""
    starts = rows.lengths_S.cumsum(0) - rows.lengths_S
    owner = torch.repeat_interleave(rows.lengths_S)
    return torch.arange(len(owner)) - starts[owner]


def _published(name: str, first: int) -> str:
    depth, _, rest = name.partition(".")
    if rest.startswith("norm."):
        rest = f"shared_head.{rest}"
    return f"model.layers.{first + int(depth)}.{rest.removeprefix('block.')}"


@attrs.frozen(kw_only=True, eq=False)
class _Draft(Head):
    """The output layer, taking note of which labels are the likeliest ids."""

    right: list[Tensor]

    @staticmethod
    def of(head: Head, *, detached: bool) -> _Draft:
        settings = attrs.asdict(head, recurse=False)
        if detached:
            settings["weight_VH"] = head.weight_VH.detach()
        return _Draft(**settings, right=[])

    def _statistics(self, logits_NV: Tensor, labels_N: Tensor) -> LabelLogprobs:
        self.right.append(logits_NV.argmax(-1) == labels_N)
        return super()._statistics(logits_NV, labels_N)
