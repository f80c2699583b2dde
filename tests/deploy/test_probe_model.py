"""The doctor's embedded models are what fanin.export makes today."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fanin.deploy.probe_model import PROBES, probe_layers
from fanin.export.onnx_op import condensed_conv_model, condensed_layer_model
from fanin.ort_ops.contract import OPS, QUANTIZED_OPS
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.format.conv_geometry import ConvGeometry
from fanin.ort_ops.reference import condensed_conv

from ._quantized_probes import probe_model, probe_node

GEOMETRY = ConvGeometry(2, 3, (2, 2), strides=(1, 2), pads=(0, 1, 1, 0))
GEMM, CONV = (CondensedWeight.from_dense(*layer) for layer in probe_layers())


def fresh_model(probe):
    op = probe.op
    if op in QUANTIZED_OPS:
        model = probe_model(op, probe.x)
    elif op == "CondensedConv":
        model = condensed_conv_model(CONV, GEOMETRY, (None, 2, 3))
    else:
        model = condensed_layer_model(GEMM, batch=None)
    del model.functions[:]
    return model


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.op)
def test_the_embedded_model_is_the_one_that_the_exporter_makes(probe):
    embedded, fresh = onnx.load_from_string(probe.model), fresh_model(probe)
    assert embedded.ir_version == fresh.ir_version
    assert list(embedded.opset_import) == list(fresh.opset_import)
    assert list(embedded.graph.input) == list(fresh.graph.input)
    assert list(embedded.graph.output) == list(fresh.graph.output)
    (node,), (fresh_node,) = embedded.graph.node, fresh.graph.node
    assert node.op_type == probe.op
    assert (node.domain, node.op_type, list(node.input)) == (
        fresh_node.domain,
        fresh_node.op_type,
        list(fresh_node.input),
    )
    assert sorted(map(str, node.attribute)) == sorted(map(str, fresh_node.attribute))
    tensors = {one.name: numpy_helper.to_array(one) for one in embedded.graph.initializer}
    for tensor in fresh.graph.initializer:
        array = numpy_helper.to_array(tensor)
        assert tensors[tensor.name].dtype == array.dtype
        np.testing.assert_array_equal(tensors.pop(tensor.name), array)
    assert not tensors


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.op)
def test_it_has_no_fallback_and_an_ablated_output(probe):
    rows = [0, 2] if "Conv" in probe.op else [0, 1, 3]
    model = onnx.load_from_string(probe.model)
    assert not model.functions
    stored = next(one for one in model.graph.initializer if one.name == "rows")
    assert numpy_helper.to_array(stored).tolist() == rows


def test_the_expected_outputs_are_right():
    gemm, conv, *quantized = PROBES
    np.testing.assert_array_equal(gemm.x @ GEMM.to_dense().T + GEMM.bias, gemm.expected)
    arrays = (CONV.values, CONV.indices, CONV.bias, CONV.rows)
    np.testing.assert_array_equal(
        condensed_conv(conv.x, *arrays, **GEOMETRY.attributes()), conv.expected
    )
    for probe in quantized:
        wanted = probe_node(probe.op, probe.x).expected()
        assert probe.expected.dtype == wanted.dtype
        np.testing.assert_array_equal(probe.expected, wanted)


def test_every_op_has_a_probe():
    assert {probe.op for probe in PROBES} == set(OPS)
