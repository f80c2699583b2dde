"""Models with the ops on 8-bit integers: opening, diagnosis, the doctor's report and plan."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from fanin import ort_ops
from fanin.deploy import SessionError, cuda, open_session
from fanin.deploy.doctor import check_model_file
from fanin.deploy.doctor_plan import plan_model
from fanin.export.onnx_schema import register_schemas
from fanin.ort_ops import CudaStatus, _native
from fanin.ort_ops.contract import ATTRIBUTES, INPUTS, QUANTIZED_OPS

from ..ort_ops._quantized import DYNAMIC, GEOMETRIES, QLINEAR_CONV, QLINEAR_GEMM, random_node

every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)


def saved(tmp_path, node, **build):
    path = tmp_path / "model.onnx"
    onnx.save(node.build(x_shape=["batch", *node.x.shape[1:]], **build), path)
    return path


@every_op
def test_open_session_runs_the_model(tmp_path, op):
    node = random_node(op, 1, residual=False)
    got = open_session(saved(tmp_path, node)).run(None, node.feeds())[0]
    np.testing.assert_array_equal(got, node.expected())


@every_op
def test_an_attribute_that_the_op_does_not_read_is_refused(tmp_path, op):
    path = saved(tmp_path, random_node(op, 1).having(clip_mxa=6.0))
    with pytest.raises(SessionError, match=f"'clip_mxa', which {op} does not read") as caught:
        open_session(path)
    assert "Did you mean 'clip_max'" in caught.value.remedy


@every_op
def test_a_refusal_of_the_op_is_the_problem_that_is_reported(tmp_path, op):
    node = random_node(op, 1)
    bad = node.having(values_scale=np.zeros(1, np.float32))
    with pytest.raises(SessionError, match=rf"^.*: {op} node 'the_layer': values_scale is 0"):
        open_session(saved(tmp_path, bad))


@every_op
def test_the_contract_is_that_of_the_schema(op):
    register_schemas()
    schema = onnx.defs.get_schema(op, 1, "ai.fanin")
    assert set(ATTRIBUTES[op]) == set(schema.attributes)
    assert list(INPUTS[op]) == [parameter.name for parameter in schema.inputs]


@every_op
def test_the_doctor_names_the_op_and_its_kernel(tmp_path, op):
    opened, layers = check_model_file(saved(tmp_path, random_node(op, 1)))
    assert opened.ok
    kernel = r"i8-conv-\S+" if op == QLINEAR_CONV else r"i8-gemm-\S+"
    one_or_more = rf"{kernel}(, {kernel})*( and {kernel})?"
    assert re.search(rf"1 {op} \(the_layer\): {one_or_more}; 0.0 MB packed", layers.detail)


@every_op
def test_the_doctor_names_weights_that_are_not_constant(tmp_path, op):
    path = saved(tmp_path, random_node(op, 1), fed=("X", "values"))
    layers = check_model_file(path)[-1]
    assert "the_layer" in layers.detail
    assert "not constant" in layers.detail


@every_op
def test_a_layer_has_the_plan_of_its_packed_weights(tmp_path, op):
    node = random_node(op, 2, geometry=GEOMETRIES[0], residual=False)
    weights = {name: node.arrays[name] for name in ("values", "indices", "rows")}
    if op == QLINEAR_CONV:
        attributes = {
            name: value if isinstance(value, int) else tuple(value)
            for name, value in GEOMETRIES[0].attributes().items()
        }
        packed = _native.PackedQuantizedConv(**weights, **attributes, threads=4)
        last = node.attributes["channels_last"]
        size = node.x.shape[1:3] if last else node.x.shape[2:]
        samples = (8, *size)
    else:
        packed = _native.PackedQuantizedGemm(**weights, in_features=37, out_features=19, threads=4)
        samples = 8
    found = plan_model(saved(tmp_path, node), 4, [8])
    (layer,) = found.layers[8]
    wanted = packed.plan(samples, 4, (found.dispatch.fixed, found.dispatch.per_thread))
    assert layer.plan.microseconds == wanted.microseconds
    assert layer.plan.threads == wanted.threads


def test_weights_that_are_not_constant_have_no_plan(tmp_path):
    node = random_node(QLINEAR_GEMM, 2, residual=False)
    model = node.build(x_shape=["batch", 37])
    tensor = next(t for t in model.graph.initializer if t.name == "values")
    model.graph.input.append(
        helper.make_tensor_value_info("values", tensor.data_type, list(tensor.dims))
    )
    model.graph.initializer.remove(tensor)
    onnx.save(model, tmp_path / "model.onnx")
    (layer,) = plan_model(tmp_path / "model.onnx", 4, [5]).layers[5]
    assert (layer.plan, layer.reason) == (None, "weights not constant: 1")


class CudaSession:
    def get_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_a_cuda_session_runs_the_ops_on_the_cpu_and_says_so(tmp_path, monkeypatch):
    usable = CudaStatus("a.so", "", (13, 0), (13, 0), ("Card (9.0)",), "", "")
    path = saved(tmp_path, random_node(DYNAMIC, 1))
    for status in (usable, replace(usable, library=None, library_problem="built without CUDA")):
        monkeypatch.setattr(ort_ops, "cuda_status", lambda status=status: status)
        with pytest.warns(RuntimeWarning, match="8-bit integers run on the CPU") as told:
            cuda.warn_without_kernels(CudaSession(), path)
        assert len(told) == 1
