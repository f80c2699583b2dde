"""Whether weights are still those that torch drew when it made their layer."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .layer_choice import LayerChoice
from .layers import IN_PROJECTIONS
from .processes import Processes
from .sharding import whole_tensor

_MOST_COMPARED = 100_000
# Kolmogorov's distance of fresh weights is larger in one of 100,000 layers.
_CRITICAL = 2.5


@torch.no_grad()
def is_fresh(name: str, weight: Tensor) -> bool:
    """Return whether a weight can be a fresh draw of its module: uniform within its bound.

    Linear and convolution layers draw from ±1/√(inputs), the input projections of
    ``MultiheadAttention`` from ±√(6/(inputs + outputs)). A few training steps move some weights
    beyond that; other initializations have other distributions.

    Args:
        name: parameter name of the weight.
        weight: the weight, neurons first.

    """
    inputs = math.prod(weight.shape[1:])
    bound = inputs**-0.5
    if name.endswith(IN_PROJECTIONS):
        bound = math.sqrt(6 / (inputs + weight.shape[0]))
    rounding = torch.finfo(weight.dtype).eps
    values = weight.detach().flatten().float() / bound
    if not bool(values.abs().max() <= 1 + 2 * rounding):
        return False
    values = values[:: -(-len(values) // _MOST_COMPARED)].sort().values
    ranks = torch.arange(len(values), device=values.device) / len(values)
    distance = float((ranks - (values + 1) / 2).abs().max())
    critical: float = _CRITICAL / len(values) ** 0.5 + 1 / len(values) + rounding
    return distance <= critical


def layers_to_keep(
    model: nn.Module,
    choice: LayerChoice,
    keep_weights: bool | None,
    processes: Processes,
    *,
    stacklevel: int,
) -> frozenset[str]:
    """Return the sparse layers whose weights are kept, the same in all processes.

    A layer that training barely moved looks new, so a model is new or is not as a whole.

    Args:
        model: the model.
        choice: its layers.
        keep_weights: keep all or none; None: keep all, with a UserWarning, unless all are fresh and
            no batch norm has seen a batch.
        processes: rank 0 decides and warns.
        stacklevel: of the warning.

    """
    if keep_weights is not None:
        return frozenset(choice.sparse if keep_weights else ())
    # Hugging Face's Conv1D has no bound, and its models draw their weights in their own ways.
    used = [
        name
        for name in choice.sparse
        if name in choice.input_first or not is_fresh(name, whole_tensor(choice.weights[name]))
    ]
    reason = f"The weights of {_some(used)} are not those that torch draws for a new layer."
    norms = () if used else [name for name, norm in model.named_modules() if _has_statistics(norm)]
    if norms:
        reason = f"The batch norms {_some(norms)} have seen batches."
    keep = processes.broadcast_object(bool(used or norms))
    if keep and processes.is_first:
        warnings.warn(
            f"{reason} All layers keep their weights, the largest of each, as in a trained model. "
            "Pass initialization=InitializationOptions(keep_weights=False) to draw new ones "
            "(training from scratch), or keep_weights=True to keep them without this warning.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return frozenset(choice.sparse if keep else ())


def _has_statistics(module: nn.Module) -> bool:
    batches = getattr(module, "num_batches_tracked", None)
    return isinstance(batches, Tensor) and bool(batches > 0)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
