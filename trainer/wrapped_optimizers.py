"""The optimizers inside wrappers: Accelerate's, SAM, Lookahead, ZeroRedundancyOptimizer."""

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


def _wrapped_by(optimizer: Optimizer, known: list[Optimizer]) -> dict[str, Optimizer]:
    found: dict[str, Optimizer] = {}
    for name, value in getattr(optimizer, "__dict__", {}).items():
        seen = (*known, *found.values())
        if isinstance(value, Optimizer) and not any(value is other for other in seen):
            found[name] = value
    return found
