"""The form in which a model is given to other runtimes."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fanin.deploy.bench.peers.model_forms import older_model


def mean_model(axes, keepdims):
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=keepdims)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 4, 5])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constant = numpy_helper.from_array(np.array(axes, np.int64), "axes")
    graph = helper.make_graph([node], "mean", [x], [y], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("axes", "keepdims", "becomes"),
    [
        ([2, 3], 1, "GlobalAveragePool"),
        ([-1, -2], 1, "GlobalAveragePool"),
        ([2, 3], 0, "ReduceMean"),
        ([3], 1, "ReduceMean"),
    ],
)
def test_deepsparse_gets_means_over_images_as_pools(tmp_path, axes, keepdims, becomes):
    model = mean_model(axes, keepdims)
    onnx.save(model, tmp_path / "model.onnx")
    older = onnx.load(older_model(tmp_path / "model.onnx", tmp_path / "older.onnx"))
    assert [node.op_type for node in older.graph.node] == [becomes]
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype(np.float32)
    (want,), (got,) = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (model, older))
    assert np.allclose(got, want, atol=1e-6)
