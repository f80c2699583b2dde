"""Which parameters of a model can be sparse, and finding them by name."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from .names import near_matches

# Weights of these types have the neurons in dimension 0. Transposed convolutions do not, and
# embeddings have none, so both stay dense.
SPARSE_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
IN_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, AveragedModel and the data-parallel wrappers."""
    wrappers = (AveragedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        # torch.compile keeps the module as _orig_mod.
        inner = getattr(model, "module" if isinstance(model, wrappers) else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def prunable_weights(model: nn.Module, *, in_proj: bool = False) -> dict[str, nn.Parameter]:
    """Weights of linear and convolution layers by qualified parameter name, in module order.

    A weight that several layers share is listed once, under its first name. ``in_proj``: also
    the input projections of MultiheadAttention, ``in_proj_weight`` of 3·E neurons (or
    ``q_proj_weight`` and so on where keys and values have sizes of their own).
    Raises ValueError for a model without any, and for lazy or parametrized layers.
    """
    found: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        leaves: Sequence[str]
        if isinstance(module, SPARSE_TYPES):
            leaves = ("weight",)
        elif in_proj and isinstance(module, nn.MultiheadAttention):
            leaves = [n for n in IN_PROJECTIONS if getattr(module, n, None) is not None]
        else:
            continue
        for leaf in leaves:
            weight = module._parameters.get(leaf)
            if weight is None:
                raise ValueError(
                    f"layer {module_name!r} computes its weight (parametrization or weight norm); "
                    "remove that first, a mask needs the weight to be a parameter"
                )
            if isinstance(weight, UninitializedParameter):
                raise ValueError(
                    f"layer {module_name!r} is lazy; run one batch through the model first"
                )
            if not any(weight is other for other in found.values()):
                found[f"{module_name}.{leaf}" if module_name else leaf] = weight
    if not found:
        raise ValueError(
            "the model has no Linear, Conv1d, Conv2d or Conv3d layer, so nothing can be sparse"
        )
    return found


def other_weights(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Count the values in matrices (two or more dimensions) that are not in ``weights``.

    By type of the module that holds them: embeddings, recurrent layers, transposed convolutions,
    and classes of other libraries, such as the Conv1D of Hugging Face's GPT-2.
    """
    seen, found = {id(weight) for weight in weights.values()}, dict[str, int]()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen and parameter.dim() > 1:
                seen.add(id(parameter))
                kind = type(module).__name__
                found[kind] = found.get(kind, 0) + parameter.numel()
    return found


def shared_names(model: nn.Module, weights: dict[str, nn.Parameter]) -> dict[str, str]:
    """Every name under which the model holds a weight, to the name that ``weights`` lists."""
    listed = {id(weight): name for name, weight in weights.items()}
    return {
        name: listed[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in listed
    }


def resolve_names(option: str, names: Iterable[str], known: Mapping[str, str]) -> frozenset[str]:
    """Map layer or parameter names given as ``option`` to values of ``known``.

    "features.0" and "features.0.weight" both mean the parameter; names with ``*`` or ``?`` are
    patterns. Raises ValueError for an unknown name or a pattern that matches nothing.
    """
    resolved = set()
    for name in names:
        found = _matching(name, known)
        if not found:
            layers = [k.removesuffix(".weight") for k in known]
            raise ValueError(
                f"{option} names {name!r}, which is no linear or convolution layer of the model."
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
    """Refuse to make weights sparse that are tied, frozen or unknown to the optimizer."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name in names:
        weight = weights[name]
        if len(owners[id(weight)]) > 1:
            reason = f"is shared by {', '.join(map(repr, owners[id(weight)]))}"
        elif not weight.requires_grad:
            reason = "is frozen (requires_grad is False)"
        elif id(weight) not in optimized:
            reason = "is not among the optimizer's parameters"
        elif hasattr(weight, "device_mesh"):
            reason = "is sharded over processes (FSDP), and neurons must be whole"
        elif weight.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            reason = f"is of type {weight.dtype}"
        else:
            continue
        raise ValueError(f"{name!r} cannot be sparse: it {reason}. Name it in dense_layers.")
