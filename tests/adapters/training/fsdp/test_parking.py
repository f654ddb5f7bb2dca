"""Memory that is given back and taken again."""

from __future__ import annotations

import torch

from hexpo.adapters.training.fsdp import Config
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.adapters.training.fsdp.parking import Parking


def test_parked_weights_come_back_bit_for_bit_under_the_same_tensors() -> None:
    """H1, I: weights, gradients and moments; what is saved meanwhile is what was there."""
    torch.manual_seed(0)
    weight, view_of = torch.nn.Parameter(torch.randn(5, 3)), torch.randn(12)
    part = torch.nn.Parameter(view_of[4:10])
    masters = Masters({"a": weight, "b": part}, Config(learning_rate=0.1))
    for gradient in masters.gradients:
        gradient.normal_()
    masters.apply(1.0, 0.1)
    for gradient in masters.gradients:
        gradient.normal_()
    tensors = {**masters.weights(), **masters.moments(), "gradient": masters.gradients[0]}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    parking = Parking(masters, [view_of])
    assert weight.untyped_storage().nbytes() == 0
    assert view_of.untyped_storage().nbytes() == 0
    for name, tensor in {**parking.weights(), **parking.moments()}.items():
        assert torch.equal(tensor, before[name]), name
    parking.restore()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert torch.equal(view_of[4:10], part.detach())
    masters.apply(1.0, 0.1)
    assert not torch.equal(weight.detach(), before["a"])
