"""The doctor's embedded model is what fanin.export makes today."""

import numpy as np
import onnx
from onnx import numpy_helper

from fanin.deploy.probe_model import EXPECTED, INPUT, probe_model, probe_weight
from fanin.export.condensed import CondensedWeight
from fanin.export.onnx_op import condensed_layer_model


def fresh_model():
    model = condensed_layer_model(CondensedWeight.from_dense(*probe_weight()), batch=None)
    del model.functions[:]
    return model


def test_the_embedded_model_is_the_one_that_the_exporter_makes():
    embedded, fresh = onnx.load_from_string(probe_model()), fresh_model()
    assert embedded.ir_version == fresh.ir_version
    assert list(embedded.opset_import) == list(fresh.opset_import)
    assert list(embedded.graph.input) == list(fresh.graph.input)
    assert list(embedded.graph.output) == list(fresh.graph.output)
    (node,), (fresh_node,) = embedded.graph.node, fresh.graph.node
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


def test_it_has_no_fallback_and_an_ablated_neuron():
    model = onnx.load_from_string(probe_model())
    assert not model.functions
    rows = next(one for one in model.graph.initializer if one.name == "rows")
    assert numpy_helper.to_array(rows).tolist() == [0, 1, 3]


def test_the_expected_output_is_right():
    weight, bias = probe_weight()
    np.testing.assert_array_equal(INPUT @ weight.T + bias, EXPECTED)
