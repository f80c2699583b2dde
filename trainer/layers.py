"""The parameters of a model that can be sparse, and their names."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from .._base.names import near_matches
from .sharding import is_distributed, is_fully_sharded, whole_tensor

# Weights of these types have neurons in dimension 0, and HF_CONV1D in dimension 1. Transposed
# convolutions have none in either, nor have embeddings, so both stay dense.
PRUNABLE_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
HF_CONV1D = ("transformers.pytorch_utils", "Conv1D")
MASKABLE_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IN_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class ComputedWeight(nn.Parameter):
    """Stands for a weight that its layer computes (parametrization, weight or spectral norm).

    It has the weight's shape and no values, and can only be dense.
    """

    def __new__(cls, module: nn.Module) -> "ComputedWeight":
        """Take the shape from the layer's sizes, since computing the weight may change buffers."""
        shape: tuple[int, ...]
        if isinstance(module, nn.Linear):
            shape = (module.out_features, module.in_features)
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            inputs = module.in_channels // module.groups
            shape = (module.out_channels, inputs, *module.kernel_size)
        else:
            weight: Any = module.weight
            shape = tuple(weight.shape)
        return super().__new__(cls, torch.empty(shape, device="meta"), requires_grad=False)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, AveragedModel and the data-parallel wrappers."""
    wrappers = (AveragedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        # torch.compile keeps the module as _orig_mod.
        inner = getattr(model, "module" if isinstance(model, wrappers) else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_prunable(module: nn.Module) -> bool:
    """Return whether the weight of a module can be sparse."""
    return isinstance(module, PRUNABLE_TYPES) or is_input_first(module)


def is_input_first(module: nn.Module) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a linear layer with a weight [in, out]."""
    return any((kind.__module__, kind.__name__) == HF_CONV1D for kind in type(module).__mro__)


def input_first_weights(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Return the names of those weights whose neurons are in dimension 1."""
    found = {id(m._parameters.get("weight")) for m in model.modules() if is_input_first(m)}
    return frozenset(name for name, weight in weights.items() if id(weight) in found)


def prunable_weights(model: nn.Module, *, in_proj: bool = False) -> dict[str, nn.Parameter]:
    """Return the weights that can be sparse by qualified parameter name, in module order.

    A weight that several layers share is listed once, under its first name.

    Args:
        model: the model.
        in_proj: include the input projections of ``MultiheadAttention``: ``in_proj_weight`` with
            3·E neurons, or ``q_proj_weight`` and so on if keys and values have their own sizes.

    Raises:
        ValueError: there is none, a layer is lazy, or the model is sharded by FSDP.

    """
    _refuse_fsdp(model)
    found: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        leaves: Sequence[str]
        if is_prunable(module):
            leaves = ("weight",)
        elif in_proj and isinstance(module, nn.MultiheadAttention):
            leaves = [n for n in IN_PROJECTIONS if getattr(module, n, None) is not None]
        else:
            continue
        for leaf in leaves:
            weight = module._parameters.get(leaf)
            if weight is None:
                weight = ComputedWeight(module)
            if isinstance(weight, UninitializedParameter):
                raise ValueError(
                    f"layer {module_name!r} is lazy and has no weight yet; run the model once"
                )
            if not any(weight is other for other in found.values()):
                found[f"{module_name}.{leaf}" if module_name else leaf] = weight
    if not found:
        others = count_other_weights(model, {})
        raise ValueError(
            "the model has no Linear, Conv1d, Conv2d, Conv3d or Conv1D (transformers) layer, so "
            f"nothing can be sparse; its weights belong to {', '.join(others) or 'nothing'}"
        )
    return found


def _refuse_fsdp(model: nn.Module) -> None:
    # A model can only be of a class whose module has been imported.
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    if wrapper is not None and any(isinstance(module, wrapper) for module in model.modules()):
        raise ValueError(
            "the model is sharded over processes by FullyShardedDataParallel (FSDP1), which joins "
            "its weights to flat ones, so it cannot be sparse; use fully_shard (FSDP2) or "
            "DistributedDataParallel"
        )


def count_other_weights(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Count the elements of matrices (two or more dimensions) that are not in ``weights``.

    By type of the module that holds them: embeddings, recurrent layers, transposed convolutions,
    and classes of other libraries.
    """
    seen, found = {id(weight) for weight in weights.values()}, dict[str, int]()
    computed = {
        name.rpartition(".")[0] for name, w in weights.items() if isinstance(w, ComputedWeight)
    }
    for module_name, module in model.named_modules():
        if module_name.partition(".parametrizations.")[0] in computed:
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen and parameter.dim() > 1:
                seen.add(id(parameter))
                kind = type(module).__name__
                found[kind] = found.get(kind, 0) + parameter.numel()
    return found


def parameter_aliases(model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, str]:
    """Map every name under which the model holds a weight to its name in ``weights``."""
    listed = {id(weight): name for name, weight in weights.items()}
    computed = {name: name for name, w in weights.items() if isinstance(w, ComputedWeight)}
    return computed | {
        name: listed[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in listed
    }


def resolve_names(option: str, names: Iterable[str], known: Mapping[str, str]) -> frozenset[str]:
    """Map layer or parameter names to parameter names.

    "features.0" and "features.0.weight" both mean the parameter; names with ``*``, ``?`` or ``[``
    are patterns.

    Args:
        option: the option that lists the names, for messages.
        names: names or patterns.
        known: known names, mapped to what they resolve to.

    Raises:
        ValueError: a name is unknown, or a pattern matches nothing.

    """
    resolved = set()
    for name in names:
        found = _matching(name, known)
        if not found:
            layers = [k.removesuffix(".weight") for k in known]
            raise ValueError(
                f"{option} names {name!r}, which is not a linear or convolution layer of the model."
                + near_matches(name, layers)
            )
        resolved |= found
    return frozenset(resolved)


def _matching(name: str, known: Mapping[str, str]) -> set[str]:
    if not any(sign in name for sign in "*?["):
        return {known[n] for n in (name, f"{name}.weight") if n in known}
    return {
        listed
        for alias, listed in known.items()
        if fnmatchcase(alias, name) or fnmatchcase(alias.removesuffix(".weight"), name)
    }


def check_trainable(
    model: nn.Module, optimizer: Optimizer, weights: dict[str, nn.Parameter], names: Collection[str]
) -> None:
    """Refuse to make these weights sparse if they are tied, frozen, sharded or computed.

    So are weights that no optimizer has, and those that their layer changes before use.

    Raises:
        ValueError: names the weight and the reason.

    """
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name in names:
        weight = weights[name]
        if isinstance(weight, ComputedWeight):
            reason = (
                "is computed by its layer (parametrization, weight norm or spectral norm), and a "
                "mask needs a parameter; remove the parametrization first"
            )
        elif not keeps_zeros(model.get_submodule(name.rpartition(".")[0])):
            reason = (
                "is changed by its layer before use, as by weight standardization, so that its "
                "zeros are no zeros there"
            )
        elif len(owners[id(weight)]) > 1:
            reason = f"is shared by {', '.join(map(repr, owners[id(weight)]))}"
        elif not weight.requires_grad:
            reason = "is frozen (requires_grad is False)"
        elif id(weight) not in optimized:
            reason = "is not among the optimizer's parameters"
            if is_distributed(weight):
                reason += " (fully_shard replaces parameters: make the optimizer after it)"
        elif weight.dtype not in MASKABLE_TYPES:
            reason = f"is of type {weight.dtype}"
        elif weight.is_meta:
            reason = "has no values yet (device meta)"
        else:
            continue
        raise ValueError(f"{name!r} cannot be sparse: it {reason}. Add it to dense_layers.")


class _WithoutSharding(nn.Module):
    """Calls a module without the hooks of FSDP2, which would take it for the root of the model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Any:
        call = self.inner.forward if is_fully_sharded(self.inner) else self.inner
        return call(inputs)


@torch.no_grad()
def keeps_zeros(module: nn.Module) -> bool:
    """Return whether zeros in a layer's weight cut its outputs from the inputs there.

    Tried out if the layer has a forward of its own. One that cannot be tried counts as true.
    """
    kind = next((kind for kind in PRUNABLE_TYPES if isinstance(module, kind)), None)
    own = kind is not None and any(
        getattr(type(module), name, None) is not getattr(kind, name, None)
        for name in ("forward", "_conv_forward")
    )
    if not own:
        return True
    generator, present = torch.Generator().manual_seed(0), module.get_parameter("weight")
    shape, device = present.shape, present.device
    weight = torch.randn(shape, generator=generator).to(device, present.dtype)
    weight[:, 0] = 0
    sharded = {name: p for name, p in module.named_parameters() if is_distributed(p)}
    values = {name: whole_tensor(p) for name, p in sharded.items()} | {"weight": weight}
    values = {f"inner.{name}": value for name, value in values.items()}
    channels, sizes = shape[1] * getattr(module, "groups", 1), [8 + size for size in shape[2:]]
    inputs = torch.randn(1, channels, *sizes, generator=generator).to(weight)
    others = inputs.clone()
    others[:, :: shape[1]] += 1  # the first input of each group
    training = module.training
    try:
        module.eval()
        plain = _WithoutSharding(module)
        results = [functional_call(plain, values, (x,)) for x in (inputs, others)]
        return torch.equal(*results)
    except Exception:  # the layer wants other inputs
        return True
    finally:
        module.train(training)
