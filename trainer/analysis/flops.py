"""Floating-point operations of sparse inference and training, by the paper's rules.

SRigL (arXiv 2305.02299, section 4) counts as the MicroNet challenge does: every multiplication and
addition of convolutions and linear layers; for a convolution also one addition for the bias and one
operation for a ReLU per output, whether present or not. Pooling, norms, additions and attention
products are not counted. Density is that of the distribution, before fan-ins are rounded and
without ablation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layers import is_input_first, is_prunable, prunable_weights, unwrap

RESNET50_IMAGENET_IMAGES = 1_281_167


@dataclass(frozen=True)
class LayerCost:
    """One weight of a model, and how often a sample uses it.

    Attributes:
        fan_in: inputs per output of the dense layer.
        outputs: output values per sample.
        convolution: whether bias and ReLU are counted.

    """

    fan_in: int
    outputs: int
    convolution: bool

    def flops(self, density: float) -> float:
        """Return the operations of a forward pass of one sample at this density."""
        if not self.convolution:
            return 2.0 * self.fan_in * density * self.outputs
        terms = self.fan_in * density
        return self.outputs * (terms + (terms - 1) + 1 + 1)


def layer_costs(model: nn.Module, input_shape: Sequence[int]) -> dict[str, LayerCost]:
    """Measure the cost of every linear and convolution layer, by parameter name.

    Runs the model once, in evaluation mode, on zeros. Input and output projections of
    ``MultiheadAttention`` count as linear layers. A layer that is used twice counts twice; one that
    is not used, or that computes its weight (weight norm), is left out.

    Args:
        model: the model.
        input_shape: shape of one sample, without the batch dimension.

    """
    model = unwrap(model)
    names = {id(w): n for n, w in prunable_weights(model, in_proj=True).items()}
    found: dict[str, LayerCost] = {}
    handles = [
        module.register_forward_hook(_cost_counter(names, found))
        for module in model.modules()
        if is_prunable(module) or isinstance(module, nn.MultiheadAttention)
    ]
    device = next(model.parameters()).device
    training = model.training
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it bypasses the modules' hooks
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input_shape, device=device))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        model.train(training)
        for handle in handles:
            handle.remove()
    return {name: found[name] for name in names.values() if name in found}


def inference_flops(work: Mapping[str, LayerCost], densities: Mapping[str, float]) -> float:
    """Return the operations of a forward pass of one sample; layers without a density are dense."""
    return sum(layer.flops(densities.get(name, 1.0)) for name, layer in work.items())


def training_flops(
    method: str,
    sparse: float,
    dense: float,
    samples: int,
    *,
    update_every: int = 100,
    trained: float | None = None,
    end_fraction: float = 0.75,
) -> float:
    """Return the operations of training.

    A backward pass counts as two forward passes. "dense": 3·dense. "static", "set", "dsr", "mest":
    "deepr": 3·sparse; MEST needs gradients of active weights only, and the weights beyond its
    budget are not counted. "rigl", "srigl", "chase": (3·sparse·ΔT + 2·sparse + dense)/(ΔT + 1),
    RigL's formula (arXiv 1911.11134, appendix), since one step in ΔT + 1 has dense weight
    gradients. "snfs", "sr-ste": 2·sparse + dense, since every step has. "top-kast": 2·sparse +
    ``trained``. "gmp": three times the mean of a forward pass over the cubic schedule; "ast": the
    same from ``trained``, without the dense weight gradients before updates.

    Args:
        method: name of the method.
        sparse: operations of a sparse forward pass of one sample.
        dense: operations of a dense forward pass of one sample.
        samples: training samples, that is, images times epochs.
        update_every: ΔT.
        trained: operations of a forward pass with all weights that get gradients, for "top-kast",
            or their mean over the sub-nets, for "ast".
        end_fraction: fraction of the training after which the topology is fixed, for "gmp" and
            "ast".

    Raises:
        ValueError: there is no rule for the method.

    """
    if method == "dense":
        return 3 * dense * samples
    if method in ("static", "set", "dsr", "mest", "deepr"):
        return 3 * sparse * samples
    if method in ("rigl", "srigl", "chase"):
        each = 3 * sparse * update_every + 2 * sparse + dense
        return each / (update_every + 1) * samples
    if method == "gmp":
        return 3 * (sparse + (dense - sparse) * end_fraction / 4) * samples
    if method == "ast" and trained is not None:
        return 3 * (trained + (dense - trained) * end_fraction / 4) * samples
    if method == "top-kast" and trained is not None:
        return (2 * sparse + trained) * samples
    if method in ("snfs", "sr-ste"):
        return (2 * sparse + dense) * samples
    raise ValueError(f"there is no formula for the training operations of {method!r}")


def _cost_counter(
    names: Mapping[int, str], found: dict[str, LayerCost]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def add(weight: Tensor, outputs: int, convolution: bool, fan_in: int | None = None) -> None:
        fan_in = math.prod(weight.shape[1:]) if fan_in is None else fan_in
        name = names.get(id(weight))
        if name is None:
            return
        before = found[name].outputs if name in found else 0
        found[name] = LayerCost(fan_in, before + outputs, convolution)

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Any
        if isinstance(module, nn.MultiheadAttention):
            tokens = inputs[0].numel() // inputs[0].shape[-1]
            if module.in_proj_weight is not None:
                add(module.in_proj_weight, tokens * module.in_proj_weight.shape[0], False)
            else:
                for tensor, leaf in zip(inputs, ("q", "k", "v"), strict=False):
                    weight = getattr(module, f"{leaf}_proj_weight")
                    add(weight, tensor.numel() // tensor.shape[-1] * weight.shape[0], False)
            add(module.out_proj.weight, tokens * module.embed_dim, False)
        elif is_input_first(module):
            weight = module.weight
            add(weight, output.numel(), False, weight.shape[0])
        elif is_prunable(module):
            weight = module.weight
            add(weight, output.numel(), not isinstance(module, nn.Linear))

    return hook
