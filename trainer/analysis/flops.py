"""Floating-point operations of sparse inference and training, by the paper's rules.

SRigL (arXiv 2305.02299, section 4) counts as the MicroNet challenge does: every multiplication and
addition of convolutions and linear layers; for a convolution one addition for the bias and one
operation for a ReLU per output, present or not; pooling, norms, additions and attention
products are left out. Density is the distribution's, before fan-ins are rounded and without
ablation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..layers import SPARSE_TYPES, prunable_weights, unwrapped

RESNET50_IMAGENET_IMAGES = 1_281_167


@dataclass(frozen=True)
class LayerWork:
    """One weight of a model and how often one sample uses it.

    ``fan_in``: dense inputs of an output; ``outputs``: output values per sample; ``convolution``:
    whether bias and ReLU are counted.
    """

    fan_in: int
    outputs: int
    convolution: bool

    def flops(self, density: float) -> float:
        """Operations of one forward pass of one sample at this density."""
        if not self.convolution:
            return 2.0 * self.fan_in * density * self.outputs
        terms = self.fan_in * density
        return self.outputs * (terms + (terms - 1) + 1 + 1)


def layer_work(model: nn.Module, input_shape: Sequence[int]) -> dict[str, LayerWork]:
    """Work of every linear and convolution layer that one sample passes, by parameter name.

    ``input_shape``: of one sample, without batch. The model is run once, in evaluation mode, with
    zeros. Input and output projections of MultiheadAttention are counted as linear layers.
    A layer that is used twice counts twice. Raises ValueError for a layer whose outputs cannot be
    told.
    """
    model = unwrapped(model)
    names = {id(w): n for n, w in prunable_weights(model, in_proj=True).items()}
    found: dict[str, LayerWork] = {}
    handles = [
        module.register_forward_hook(_counter(names, found))
        for module in model.modules()
        if isinstance(module, (*SPARSE_TYPES, nn.MultiheadAttention))
    ]
    device = next(model.parameters()).device
    training = model.training
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would go past the modules
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input_shape, device=device))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        model.train(training)
        for handle in handles:
            handle.remove()
    return {name: found[name] for name in names.values() if name in found}


def inference_flops(work: Mapping[str, LayerWork], densities: Mapping[str, float]) -> float:
    """Operations of one forward pass of one sample; layers without a density are dense."""
    return sum(layer.flops(densities.get(name, 1.0)) for name, layer in work.items())


def training_flops(
    method: str, sparse: float, dense: float, samples: int, *, update_every: int = 100
) -> float:
    """Operations of training on ``samples`` samples (images times epochs).

    ``sparse``, ``dense``: operations of a forward pass. A backward pass costs two forward ones.
    By method: "dense" 3·dense; "static", "set", "dsr" 3·sparse; "rigl", "srigl", "mest": RigL's
    (3·sparse·ΔT + 2·sparse + dense)/(ΔT + 1) (arXiv 1911.11134, appendix), as one step in ΔT + 1
    has dense weight gradients; "snfs" and "sr-ste" 2·sparse + dense, as every step has.
    Raises ValueError for another method.
    """
    if method == "dense":
        return 3 * dense * samples
    if method in ("static", "set", "dsr"):
        return 3 * sparse * samples
    if method in ("rigl", "srigl", "mest"):
        each = 3 * sparse * update_every + 2 * sparse + dense
        return each / (update_every + 1) * samples
    if method in ("snfs", "sr-ste"):
        return (2 * sparse + dense) * samples
    raise ValueError(f"no rule for the training operations of {method!r}")


def _counter(
    names: Mapping[int, str], found: dict[str, LayerWork]
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def add(weight: Tensor, outputs: int, convolution: bool) -> None:
        name = names.get(id(weight))
        if name is None:
            return
        before = found[name].outputs if name in found else 0
        fan_in = math.prod(weight.shape[1:])
        found[name] = LayerWork(fan_in, before + outputs, convolution)

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.MultiheadAttention):
            tokens = inputs[0].numel() // inputs[0].shape[-1]
            if module.in_proj_weight is not None:
                add(module.in_proj_weight, tokens * module.in_proj_weight.shape[0], False)
            else:
                for tensor, leaf in zip(inputs, ("q", "k", "v"), strict=False):
                    weight = getattr(module, f"{leaf}_proj_weight")
                    add(weight, tensor.numel() // tensor.shape[-1] * weight.shape[0], False)
            add(module.out_proj.weight, tokens * module.embed_dim, False)
        elif isinstance(module, SPARSE_TYPES):
            add(module.weight, output.numel(), not isinstance(module, nn.Linear))

    return hook
