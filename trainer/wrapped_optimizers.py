"""The optimizers inside wrappers: Accelerate's, SAM, Lookahead, ZeroRedundancyOptimizer."""

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer


def optimizer_chain(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return an optimizer and those that it wraps, outermost first.

    The last one is the one whose ``step()`` moves the weights, however its wrapper is used: SAM's
    two-step form never calls the ``step()`` of its own. An optimizer is wrapped if another one has
    it as an attribute.

    Raises:
        TypeError: it is no optimizer, or the wrapped one cannot be told.

    """
    chain = [optimizer]
    while inner := _wrapped_by(chain[-1], chain):
        if len(inner) > 1:
            names = ", ".join(f"optimizer.{name}" for name in inner)
            raise TypeError(
                f"{type(optimizer).__name__} holds several optimizers ({names}); pass the one that "
                "updates the sparse weights"
            )
        chain += inner.values()
    if not isinstance(chain[-1], Optimizer) or not hasattr(chain[-1], "_optimizer_step_post_hooks"):
        kind = type(chain[-1]).__name__
        raise TypeError(
            f"{kind} has no step hooks of torch.optim.Optimizer, nor an optimizer that has them as "
            "an attribute; pass the torch.optim.Optimizer whose step() moves the weights"
        )
    return tuple(chain)


def check_trained_here(
    optimizer: Optimizer, weights: Mapping[str, nn.Parameter], method: str
) -> None:
    """Refuse an innermost optimizer that leaves weights to those of other processes.

    They send the sparse weights only, so that the dense ones behind them, which choose the masks,
    would differ between processes.

    Raises:
        ValueError: names a weight.

    """
    trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    if missing := [name for name, weight in weights.items() if id(weight) not in trained]:
        raise ValueError(
            f"{missing[0]!r} is trained by another process (ZeroRedundancyOptimizer divides "
            f"weights among processes), where method {method!r} has the dense weights behind its "
            "mask; use an optimizer that has all weights in every process, or another method"
        )


def _wrapped_by(optimizer: Optimizer, known: list[Optimizer]) -> dict[str, Optimizer]:
    found: dict[str, Optimizer] = {}
    for name, value in getattr(optimizer, "__dict__", {}).items():
        seen = (*known, *found.values())
        if isinstance(value, Optimizer) and not any(value is other for other in seen):
            found[name] = value
    return found
