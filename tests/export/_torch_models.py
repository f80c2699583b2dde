"""What the tests of torch models share."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


class Masked(nn.Module):
    """A parametrization that multiplies by a mask."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


class Outputs(nn.Module):
    """A model of transformers that takes ids and gives one tensor."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, input_ids: Tensor) -> Tensor:
        return getattr(self.model(input_ids=input_ids), self.field)


def state_dict_hash(model: nn.Module) -> str:
    """Hash names, types, layouts, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tensor.layout} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach()
        plain = plain if plain.layout == torch.strided else plain.to_dense()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
