"""Masks like those that SRigL trains: constant fan-in, with a share of the neurons ablated."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def srigl_mask(shape: tuple[int, ...], sparsity: float, ablated: float, seed: int) -> Tensor:
    """Draw a bool mask of a weight ``[out, in]``; the other rows take over the ablated ones'."""
    generator = torch.Generator().manual_seed(seed)
    out_features, in_features = shape
    rows = torch.randperm(out_features, generator=generator)[int(ablated * out_features) :]
    fan_in = min(in_features, round((1 - sparsity) * in_features * out_features / len(rows)))
    mask = torch.zeros(shape, dtype=torch.bool)
    order = torch.rand(len(rows), in_features, generator=generator).argsort(dim=1)[:, :fan_in]
    chosen = torch.zeros(len(rows), in_features, dtype=torch.bool).scatter_(1, order, True)
    mask[rows] = chosen
    return mask


def sparsify_(model: nn.Module, shares: dict[str, tuple[float, float]]) -> dict[str, Tensor]:
    """Mask every 2-D weight whose name holds a key: key to (sparsity, ablated); returns masks."""
    masks = {}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        share = next((share for key, share in shares.items() if key in name), None)
        if parameter.ndim != 2 or share is None:
            continue
        masks[name] = srigl_mask(tuple(parameter.shape), *share, seed=number)
        with torch.no_grad():
            parameter.mul_(masks[name])
    return masks
