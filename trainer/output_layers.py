"""The layers that compute a model's outputs, by its graph."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from .layers import is_prunable
from .sharding import is_fully_sharded, original_type


def output_layers(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> frozenset[str] | None:
    """Return the weights after which nothing but operators without weights leads to an output.

    Traces the model by torch.fx, without running its layers.

    Args:
        model: the model.
        weights: weights by parameter name.

    Returns:
        Names of the weights; None if the model cannot be traced, as with control flow that depends
        on values, or if no weight leads to an output.

    """
    graph = _trace(model)
    if graph is None:
        return None
    names = {id(weight): name for name, weight in weights.items()}
    found: set[str] = set()
    seen: set[fx.Node] = set()
    pending = [node for node in graph.nodes if node.op == "output"]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        here = {names[id(p)] for p in _parameters_of(model, node) if id(p) in names}
        if node.op == "call_module":
            here |= {f"{node.target}.weight"} & weights.keys()  # also of layers that compute it
        found |= here
        if not here:
            pending += node.all_input_nodes
    return frozenset(found) or None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if is_fully_sharded(m):  # fx takes classes of torch.nn as leaves, by their module
            of_torch = original_type(m).__module__.startswith("torch.nn")
            return is_prunable(m) or (of_torch and not isinstance(m, nn.Sequential))
        return is_prunable(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        # FSDP2's hooks would take this module for the root of the model.
        return super().call_module(m, m.forward if is_fully_sharded(m) else forward, args, kwargs)


def _trace(model: nn.Module) -> fx.Graph | None:
    with _attributes_restored(model), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _Tracer().trace(model)
        except Exception:  # whatever a forward raises when it gets symbols instead of tensors
            return None


@contextmanager
def _attributes_restored(model: nn.Module) -> Iterator[None]:
    """Undo what a forward stores in its modules, such as the symbols of a trace."""
    tables = ("_parameters", "_buffers", "_modules")
    saved = [
        (module, dict(module.__dict__), {name: dict(getattr(module, name)) for name in tables})
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for module, attributes, contents in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for name, content in contents.items():
                table = getattr(module, name)
                table.clear()
                table.update(content)


def _parameters_of(model: nn.Module, node: fx.Node) -> Iterator[nn.Parameter]:
    """Yield the parameters that a node multiplies with."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if isinstance(module, nn.MultiheadAttention):
            module = module.out_proj
        if is_prunable(module):
            yield from module.parameters(recurse=False)
    for source in node.all_input_nodes:
        if source.op == "get_attr" and node.op != "output":
            owner, _, leaf = str(source.target).rpartition(".")
            parameter = model.get_submodule(owner)._parameters.get(leaf)
            if parameter is not None:
                yield parameter
