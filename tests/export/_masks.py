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


def sparsify_convs_(
    model: nn.Module, sparsity: float, ablated: float = 0.0, skip: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Mask every convolution that is not depthwise and whose name holds no ``skip``."""
    masks = {}
    for number, (name, module) in enumerate(model.named_modules()):
        if not isinstance(module, (nn.Conv1d, nn.Conv2d)) or module.in_channels == module.groups:
            continue
        if any(part in name for part in skip):
            continue
        shape = module.weight.shape
        flat = srigl_mask((shape[0], shape[1:].numel()), sparsity, ablated, seed=number)
        masks[f"{name}.weight"] = flat.reshape(shape)
        with torch.no_grad():
            module.weight.mul_(masks[f"{name}.weight"])
    return masks


def settle_norms_(model: nn.Module, seed: int = 0) -> None:
    """Give norms statistics and constants as training leaves them, all different."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            with torch.no_grad():
                for tensor, low, high in (
                    (module.weight, 0.5, 1.5),
                    (module.bias, -0.5, 0.5),
                    (module.running_mean, -0.5, 0.5),
                    (module.running_var, 0.5, 1.5),
                ):
                    tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator))
