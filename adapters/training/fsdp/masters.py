"""Single precision masters, gradient accumulators and AdamW of a policy's trainable weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from hexpo.adapters.models.sums import tie_sum
from hexpo.adapters.training.backend import Gradient
from hexpo.adapters.training.fsdp.config import Config
from hexpo.domain.errors import CheckpointError


class Masters:
    """Where working weights are stored in fewer bits, masters and accumulators are fp32 tensors of
    their own: each gradient is added as backward makes it, and freed. Else they are the weights.
    """

    def __init__(
        self,
        trained: Mapping[str, torch.nn.Parameter],
        config: Config,
        *,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        """Args: trained: weights that are learnt, or this rank's part of each.
        apart: names of those that are clipped by a norm of their own, and are in no other one.
        """
        self._clip, self._apart = config.clip_norm, apart
        self.names = list(trained)
        self._working = list(trained.values())
        self._masters = [
            parameter
            if parameter.dtype == torch.float32
            else torch.nn.Parameter(parameter.detach().float())
            for parameter in self._working
        ]
        self._hooks = []
        for master, working in zip(self._masters, self._working, strict=True):
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            if master is not working:
                hook = working.register_post_accumulate_grad_hook(_adder(master))  # type: ignore[no-untyped-call]
                self._hooks.append(hook)
                tie_sum(working, master.grad)
        self.optimizer = torch.optim.AdamW(
            self._decay_groups(config.weight_decay),
            lr=config.learning_rate,
            betas=(config.beta_gradient, config.beta_square),
            eps=config.epsilon,
            fused=True,
        )

    def _decay_groups(self, weight_decay: float) -> list[dict[str, object]]:
        matrices = [master for master in self._masters if master.dim() > 1]
        others = [master for master in self._masters if master.dim() <= 1]
        groups = ((matrices, weight_decay), (others, 0.0))
        return [{"params": list_, "weight_decay": decay} for list_, decay in groups if list_]

    @property
    def gradients(self) -> list[Tensor]:
        """Accumulators: live tensors."""
        return [master.grad for master in self._masters if master.grad is not None]

    def gradient(self) -> Gradient:
        """The norm of what was accumulated, and who spoilt it."""
        norms = torch.stack(torch._foreach_norm(self.gradients))
        norm, beside = self._norms(norms)
        if math.isfinite(norm) and math.isfinite(beside):
            return Gradient(norm)
        bad = (~norms.isfinite()).nonzero()
        return Gradient(norm, self.names[int(bad[0])] if len(bad) else "the norm of all weights")

    def apply(self, norm: float, learning_rate: float) -> None:
        """Clip, step, round to the working weights, forget the gradients."""
        with torch.no_grad():
            self._clip_all(norm)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self._publish()
        self.forget()

    def _norms(self, norms: Tensor) -> tuple[float, float]:
        """Of all weights, and of those apart, from the norm of each."""
        if not self._apart:
            return float(torch.linalg.vector_norm(norms)), 0.0
        is_apart = torch.tensor([name in self._apart for name in self.names])
        one, other = norms[~is_apart], norms[is_apart]
        return float(torch.linalg.vector_norm(one)), float(torch.linalg.vector_norm(other))

    def _clip_all(self, norm: float) -> None:
        if not self._clip:
            return
        if not self._apart:
            if norm > self._clip:
                torch._foreach_mul_(self.gradients, self._clip / norm)
            return
        _, beside = self._norms(torch.stack(torch._foreach_norm(self.gradients)))
        for gradient, name in zip(self.gradients, self.names, strict=True):
            own = beside if name in self._apart else norm
            if own > self._clip:
                gradient.mul_(self._clip / own)

    def _publish(self) -> None:
        pairs = [
            (working.data, master.data)
            for working, master in zip(self._working, self._masters, strict=True)
            if working is not master
        ]
        if pairs:
            torch._foreach_copy_([to for to, _ in pairs], [source for _, source in pairs])

    def forget(self) -> None:
        """Gradients back to zero, whatever they hold."""
        torch._foreach_zero_(self.gradients)

    def close(self) -> None:
        """Leave the policy as an ordinary model."""
        for hook in self._hooks:
            hook.remove()
        for working in self._working:
            tie_sum(working, None)
        for parameter in (*self._working, *self._masters):
            parameter.grad = None

    def weights(self) -> dict[str, Tensor]:
        """Masters by name: live tensors."""
        return {
            name: master.detach() for name, master in zip(self.names, self._masters, strict=True)
        }

    def moments(self) -> dict[str, Tensor]:
        """AdamW's two means and step count of each weight: live tensors; none before a step."""
        found = {}
        for name, master in zip(self.names, self._masters, strict=True):
            for key, value in self.optimizer.state.get(master, {}).items():
                found[f"{key}.{name}"] = value
        return found

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Take over what `weights` and `moments` gave, by copy. Raises CheckpointError: a name or
        a shape misfits; nothing is changed then."""
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.weights().items()}
        if shapes != wanted:
            differing = sorted(dict(shapes.items() ^ wanted.items()))
            raise CheckpointError(
                f"the checkpoint's weights are not this model's: {len(differing)} differ in name or"
                f" shape, such as {differing[0]}"
            )
        keys = ("step", "exp_avg", "exp_avg_sq")
        if moments and set(moments) != {f"{key}.{name}" for key in keys for name in self.names}:
            raise CheckpointError("the checkpoint's optimizer state is not that of its weights")
        self.optimizer.state.clear()
        with torch.no_grad():
            for name, master in zip(self.names, self._masters, strict=True):
                master.copy_(weights[name])
                if moments:
                    saved = {key: moments[f"{key}.{name}"] for key in keys}
                    state = {
                        key: tensor.to(master.device, copy=True) for key, tensor in saved.items()
                    }
                    self.optimizer.state[master] = state
        self._publish()
        self.forget()


class ShardMasters(Masters):
    """Masters of this rank's parts; norms are those of the whole."""

    def __init__(
        self, trained: Mapping[str, torch.nn.Parameter], config: Config, *, own: frozenset[str]
    ) -> None:
        """Args: own: names of the parts that count here; another rank has the same others."""
        super().__init__(trained, config)
        self.own = own

    def gradient(self) -> Gradient:
        """The norm over all ranks, each part counted once, and who spoilt it here."""
        import torch.distributed as dist

        here = super().gradient()
        pairs = zip(self.names, self.gradients, strict=True)
        own = [gradient for name, gradient in pairs if name in self.own]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(own))) if own else 0.0
        square = torch.tensor([float(norm)], dtype=torch.float64).square()
        dist.all_reduce(square)
        return Gradient(float(square.sqrt()), here.bad)


def _adder(master: Tensor):  # type: ignore[no-untyped-def]
    def add(working: Tensor) -> None:
        if master.grad is not None and working.grad is not None:
            master.grad.add_(working.grad)
        working.grad = None

    return add
