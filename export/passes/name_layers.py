"""Condensed nodes get the names of their layers, which every error and profile then shows."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from .access import input_of
from .nodes import condensed_nodes
from .result_pass import ResultPass

LAYER = "layer"
"""Attribute that carries a layer's name through the exporter; no file holds it."""

NO_RESIDUAL = "no_residual"


@dataclass
class NameResult(ir.passes.PassResult):
    """A pass result that also says which nodes each layer became.

    Attributes:
        nodes: node names by layer name.

    """

    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)


class NameLayersPass(ResultPass[NameResult]):
    """Turn the attribute :data:`LAYER` of condensed nodes into their name.

    A layer that is called more than once gets one node for each call: ``fc``, ``fc_1``, and so on.
    """

    def call(self, model: ir.Model) -> NameResult:
        """Name the nodes, and the tensor that says that nothing is added."""
        taken = {node.name for node in model.graph.all_nodes()}
        named: dict[str, tuple[str, ...]] = {}
        ours = [node for node in condensed_nodes(model) if LAYER in node.attributes]
        for node in ours:
            layer = node.attributes.pop(LAYER).as_string()
            node.name = name = _free(layer, taken)
            named[layer] = (*named.get(layer, ()), name)
        # In the order of the graph: a set would number them in another order in every process.
        for residual in dict.fromkeys(input_of(node, 5) for node in ours):
            if residual.is_initializer() and all(use.idx == 5 for use in residual.uses()):
                residual.name = _free(NO_RESIDUAL, set(model.graph.initializers))
        return NameResult(model, modified=bool(ours), nodes=named)


def _free(name: str, taken: set[str | None]) -> str:
    count, free = 0, name
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    taken.add(free)
    return free
