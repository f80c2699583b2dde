"""Which parameters of a model can be sparse, and finding them by name."""

from collections.abc import Collection, Iterable, Sequence

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from .names import near_matches

# Weights of these types have the neurons in dimension 0. Transposed convolutions do not, and
# embeddings have none, so both stay dense.
SPARSE_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, AveragedModel and the data-parallel wrappers."""
    wrappers = (AveragedModel, nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = model._orig_mod
        else:
            return model


def prunable_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights of linear and convolution layers by qualified parameter name, in module order.

    Raises ValueError for a model without any, and for lazy or parametrized layers.
    """
    found: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        if not isinstance(module, SPARSE_TYPES):
            continue
        name = f"{module_name}.weight" if module_name else "weight"
        weight = module._parameters.get("weight")
        if weight is None:
            raise ValueError(
                f"layer {module_name!r} computes its weight (parametrization or weight norm); "
                "remove that first, a mask needs the weight to be a parameter"
            )
        if isinstance(weight, UninitializedParameter):
            raise ValueError(
                f"layer {module_name!r} is lazy; run one batch through the model first"
            )
        found[name] = weight
    if not found:
        raise ValueError(
            "the model has no Linear, Conv1d, Conv2d or Conv3d layer, so nothing can be sparse"
        )
    return found


def resolve_names(option: str, names: Iterable[str], known: Sequence[str]) -> frozenset[str]:
    """Map layer or parameter names given as ``option`` to names in ``known``.

    "features.0" and "features.0.weight" both mean the parameter. Raises TypeError for a plain
    string, which would otherwise be read letter by letter, and ValueError for an unknown name.
    """
    if isinstance(names, str):
        raise TypeError(f"{option} must be a list of layer names; write [{names!r}]")
    resolved = set()
    for name in names:
        parameter = name if name in known else f"{name}.weight"
        if parameter not in known:
            layers = [k.removesuffix(".weight") for k in known]
            raise ValueError(
                f"{option} names {name!r}, which is no linear or convolution layer of the model."
                + near_matches(name, layers)
            )
        resolved.add(parameter)
    return frozenset(resolved)


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
        else:
            continue
        raise ValueError(f"{name!r} cannot be sparse: it {reason}. Name it in dense_layers.")
