"""Quantization-aware training: forward passes round to 8 bits as the exported file will.

Weights are rounded to int8, symmetric, with a scale for each neuron; the inputs of each layer to
uint8, with the range of the batch. Gradients pass straight through (Jacob et al., arXiv 1712.05877,
section 3). ``fanin quantize`` rounds weights the same way, also where it folds a batch norm into
them: that multiplies whole neurons, scales included. Its ranges of inputs are fixed, found on
samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .layers import is_input_first, is_prunable, prunable_weights, unwrap

_WEIGHT_LIMIT, _INPUT_LIMIT = 127, 255


@dataclass
class FakeQuantization:
    """The 8-bit rounding of a model's layers, until ``remove()``.

    Attributes:
        layers: names of the modules that round.
        left: parameters that stay float, since their module reads them directly (those of
            ``MultiheadAttention``).

    """

    layers: tuple[str, ...]
    left: tuple[str, ...]
    _handles: Sequence[RemovableHandle]

    def remove(self) -> None:
        """Compute in float again."""
        for handle in self._handles:
            handle.remove()


def fake_quantize_(model: nn.Module) -> FakeQuantization:
    """Let the linear and convolution layers of a model compute with values of 8 bits.

    Parameters, masks and ``state_dict()`` stay those of the float model: attach it before or after
    a ``Sparsifier``, train or fine-tune, and export the model to 8 bits. Zeros stay zeros.

    Args:
        model: the model, or a wrapper of it.

    Raises:
        ValueError: no layer can round.

    """
    model = unwrap(model)
    handles: list[RemovableHandle] = []
    layers: dict[str, nn.Module] = {}
    # A MultiheadAttention computes with the weight of its out_proj and never calls it.
    attentions = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module in model.named_modules():
        computed = module._parameters.get("weight") is None  # such as weight norm's
        if is_prunable(module) and not computed and id(module) not in attentions:
            layers[name] = module
            handles.append(module.register_forward_pre_hook(_round))
            handles.append(module.register_forward_hook(_restore, always_call=True))
    if not layers:
        raise ValueError("the model has no linear or convolution layer to compute in 8 bits")
    rounded = {id(module._parameters["weight"]) for module in layers.values()}
    weights = prunable_weights(model, in_proj=True)
    left = tuple(name for name, weight in weights.items() if id(weight) not in rounded)
    return FakeQuantization(tuple(layers), left, handles)


def _round(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    weight = module._parameters["weight"]
    assert weight is not None  # of a prunable layer
    # An entry of the instance hides the parameter of the same name until the hook after forward.
    module.__dict__["weight"] = rounded_weight(weight, axis=1 if is_input_first(module) else 0)
    return (rounded_inputs(inputs[0]), *inputs[1:])


def _restore(module: nn.Module, *_: object) -> None:
    module.__dict__.pop("weight", None)


def rounded_weight(weight: Tensor, axis: int = 0) -> Tensor:
    """Round a weight to multiples of each neuron's scale, max|w| / 127.

    Args:
        weight: float, with neurons along ``axis``.
        axis: 0 or 1.

    """
    others = [dim for dim in range(weight.dim()) if dim != axis]
    scale = weight.detach().float().abs().amax(others) / _WEIGHT_LIMIT
    scale = scale.masked_fill(scale == 0, 1.0)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    rounded = torch.fake_quantize_per_channel_affine(
        weight.float(), scale, zero, axis, -_WEIGHT_LIMIT, _WEIGHT_LIMIT
    )
    return rounded.to(weight.dtype)


def rounded_inputs(inputs: Tensor) -> Tensor:
    """Round inputs to 256 steps over their range, zero included, which stays exact."""
    values = inputs.detach().float()
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = (high - low) / _INPUT_LIMIT
    scale = torch.where(scale > 0, scale, 1.0)
    zero = (-low / scale).round().to(torch.int32)
    rounded = torch.fake_quantize_per_tensor_affine(inputs.float(), scale, zero, 0, _INPUT_LIMIT)
    return rounded.to(inputs.dtype)
