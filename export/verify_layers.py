"""Verification of models that are too large to be run whole, twice, beside their source.

Above :data:`LARGE` bytes of dense weights each condensed node of the written file is run on its
own, without and with the library, and compared with its weight in float64. That takes the memory of
one dense layer. What the passes do to a graph is then covered by the structural checks alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from .engines import NotAtHandError, engines
from .errors import ExportError
from .onnx_op import condensed_layer_model
from .passes.nodes import condensed_nodes, constant_of, read_weight
from .report import ParityCheck
from .verify import RELATIVE_TOLERANCE, max_error

LARGE = 500_000_000
"""Bytes of dense weights from which a model is verified layer by layer."""

LAYER_BY_LAYER = f"outputs of the whole model: over {LARGE // 10**6} MB it is checked by layer"

_BATCH = 2


def check_layers(path: Path) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
    """Run every condensed node of a file on its own.

    Returns:
        One check for each engine, and one line for each that did not run.

    Raises:
        ExportError: a node is off by more than rounding, by name.

    """
    model = ir.load(path)
    rng = np.random.default_rng(0)
    worst: dict[str, tuple[float, float]] = {}
    missing = {LAYER_BY_LAYER}
    for node in condensed_nodes(model):
        weight = read_weight(node)
        if weight is None or constant_of(node.inputs[0]) is not None:
            continue
        x = rng.standard_normal((_BATCH, weight.in_features)).astype(np.float32)
        expected = x.astype(np.float64) @ weight.to_dense().T + weight.bias
        scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        layer = condensed_layer_model(weight, None).SerializeToString()
        for engine in engines(uses_our_ops=True):
            try:
                (actual,) = engine.load(layer)({"x": x})
            except NotAtHandError as error:
                missing.add(f"{engine.name}: {error}")
                continue
            error = max_error(actual, expected)
            if not error <= RELATIVE_TOLERANCE * scale:
                raise ExportError(
                    f"node {node.name} in {engine.name} differs from its weight in float64 by "
                    f"{error:.3g} at a scale of {scale:.3g}; nothing was written"
                )
            before = worst.get(engine.name, (0.0, 0.0))
            worst[engine.name] = (max(before[0], error), max(before[1], error / scale))
    checks = tuple(
        ParityCheck(f"{name}, layer by layer", (_BATCH,), *errors, RELATIVE_TOLERANCE)
        for name, errors in worst.items()
    )
    return checks, tuple(sorted(missing))
