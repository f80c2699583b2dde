"""Dynamic quantization: each run of a linear layer finds the range of its own input."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from .float_model import Layer
from .tool import clean, running


def quantize_dynamic(path: Path, out: Path, layers: Collection[Layer], large: bool) -> ir.Model:
    """Quantize linear layers of a float model.

    Args:
        path: the float model.
        out: the file to write.
        layers: those to quantize.
        large: whether the model needs a data file.

    Returns:
        The model that was written.

    Raises:
        ExportError: the quantizer refuses the model.

    """
    nodes = [layer.node for layer in layers]
    with running("quantize_dynamic"):
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization import quantize_dynamic as quantize

        quantize(
            path,
            out,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            # It makes a MatMul of a Gemm before it looks at the names.
            nodes_to_quantize=[*nodes, *(f"{name}_MatMul" for name in nodes)],
            use_external_data_format=large,
        )
    return clean(out, nodes)
