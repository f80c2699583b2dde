"""What CondensedConv computes: types, special numbers, residual, clip, batches, threads, shapes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fanin import ort_ops
from fanin.ort_ops import _native
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_models import (
    GEOMETRY,
    ConvLayer,
    assert_conv_close,
    conv_spec,
    dense_conv_model,
    with_values,
)
from ._cycle_probe import growth
from ._models import open_session, run
from ._own_weights import of_its_own

LAYER = ConvLayer.random(active=6, padded=True)
LINE = ConvLayer.random(ConvGeometry(5, 7, (4,), strides=(2,), pads=(1, 3), dilations=(2,)), 6)
BIG = ConvLayer.random(ConvGeometry(64, 96, (3, 3), pads=(1, 1, 1, 1)), 58, active=90)

GEOMETRIES = {
    "1x1": ConvGeometry(16, 24, (1, 1)),
    "1x1-stride-2": ConvGeometry(16, 24, (1, 1), strides=(2, 2)),
    "3x3-same": ConvGeometry(8, 12, (3, 3), pads=(1, 1, 1, 1)),
    "3x3-stride-2": ConvGeometry(8, 12, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    "3x3-same-upper": ConvGeometry(8, 12, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1)),
    "7x7-stride-2": ConvGeometry(3, 16, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3)),
    "5x1": ConvGeometry(4, 6, (5, 1), pads=(2, 0, 2, 0)),
    "dilated": ConvGeometry(4, 6, (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "grouped": ConvGeometry(8, 12, (3, 3), pads=(1, 1, 1, 1), group=4),
    "depthwise": ConvGeometry(10, 10, (3, 3), pads=(1, 1, 1, 1), group=10),
    "depthwise-multiplier": ConvGeometry(6, 18, (3, 3), group=6),
    "patches": ConvGeometry(3, 20, (4, 4), strides=(4, 4)),
    "line": ConvGeometry(6, 9, (5,), pads=(2, 2)),
    "line-pointwise": ConvGeometry(6, 9, (1,)),
    "line-causal": ConvGeometry(6, 9, (3,), pads=(4, 0), dilations=(2,)),
    "line-depthwise": ConvGeometry(6, 6, (4,), pads=(1, 2), group=6),
}


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("name", GEOMETRIES)
def test_it_equals_the_dense_conv_of_the_scattered_weight(name, isa, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    geometry = GEOMETRIES[name]
    layer = ConvLayer.random(geometry, max(1, geometry.in_features // 5), padded=True)
    dense = onnxruntime.InferenceSession(
        dense_conv_model(layer).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    session = open_session(conv_spec(layer).build())
    for batch, sizes in ((1, (13, 12)), (3, (9, 17))):
        x = layer.x(batch, *sizes[: geometry.axes])
        y = run(session, X=x)
        assert_conv_close(y, layer, x)
        bound = (layer.values.shape[1] + 3) * 2.0**-23 * layer.magnitude(x)
        assert np.all(np.abs(y - run(dense, X=x)) <= bound)


@pytest.mark.parametrize("x_type", [np.float32, np.float16])
@pytest.mark.parametrize("value_type", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("index_type", [np.uint16, np.int32])
def test_every_combination_of_types(x_type, value_type, index_type):
    layer = with_values(ConvLayer.random(active=7, index_type=index_type), value_type)
    spec = conv_spec(layer, dtype=x_type, fed={"residual": None}, clip_min=-0.5, clip_max=2.0)
    session = open_session(spec.build(), threads=2)
    for batch in (1, 4):
        x = layer.x(batch, 7, 9, dtype=x_type)
        shape = layer.y_shape(x)
        residual = np.random.default_rng(2).standard_normal(shape).astype(x_type)
        y = run(session, X=x, residual=residual)
        assert_conv_close(y, layer, x, residual, clip_min=-0.5, clip_max=2.0)


def test_many_float16_images_are_cut_into_slices():
    layer = ConvLayer.random(ConvGeometry(16, 4, (3, 3)), 9)
    x = layer.x(40, 64, 64, dtype=np.float16)  # 10 MB in float32
    y = run(open_session(conv_spec(layer, dtype=np.float16).build(), threads=2), X=x)
    assert_conv_close(y, layer, x)
    one = run(open_session(conv_spec(layer, dtype=np.float16).build()), X=x[39:])
    np.testing.assert_array_equal(y[39:], one)


def test_a_float16_result_beyond_its_range_is_infinite():
    layer = ConvLayer.random(ConvGeometry(1, 1, (1, 1)), 1)
    layer = replace(layer, values=np.full((1, 1), 1000, np.float32))
    x = np.full((1, 1, 1, 1), 100, np.float16)
    assert run(open_session(conv_spec(layer, dtype=np.float16).build()), X=x)[0, 0, 0, 0] == np.inf


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_reach_exactly_the_outputs_that_hold_a_weight_on_them(special):
    session = open_session(conv_spec(LAYER).build())
    for at in ((0, 0, 0, 0), (1, 5, 6, 8), (0, 2, 3, 3)):
        x = LAYER.x(2, 7, 9)
        x[at] = special
        y = run(session, X=x)
        assert_conv_close(y, LAYER, x)
        assert np.isfinite(y).any()


def test_a_stored_zero_lets_a_nan_through_and_padding_of_a_row_does_not():
    geometry = ConvGeometry(2, 1, (1, 1))
    layer = ConvLayer(
        geometry,
        np.array([[1, 0]], np.float32),
        np.array([[0, 1]], np.uint16),
        np.zeros(1, np.float32),
        np.zeros(1, np.int32),
    )
    x = np.array([3, np.nan], np.float32).reshape(1, 2, 1, 1)
    assert np.isnan(run(open_session(conv_spec(layer).build()), X=x)).all()
    padded = replace(layer, indices=np.array([[0, 0]], np.uint16))
    assert run(open_session(conv_spec(padded).build()), X=x)[0, 0, 0, 0] == 3
    x[:] = np.inf
    assert run(open_session(conv_spec(padded).build()), X=x)[0, 0, 0, 0] == np.inf


def test_outputs_that_see_padding_alone_are_the_bias():
    layer = ConvLayer.random(ConvGeometry(3, 5, (2, 2), pads=(4, 0, 0, 5)), 6)
    x = layer.x(1, 3, 3)
    y = run(open_session(conv_spec(layer).build()), X=x)
    assert_conv_close(y, layer, x)
    np.testing.assert_array_equal(y[0, :, 0], np.tile(layer.bias[:, None], y.shape[3]))


def test_a_layer_without_active_rows_is_bias_residual_and_clip():
    layer = ConvLayer.random(fan_in=3, active=0)
    x = layer.x(2, 5, 6)
    residual = np.random.default_rng(5).standard_normal(layer.y_shape(x)).astype(np.float32)
    session = open_session(conv_spec(layer, fed={"residual": None}, clip_min=0.0).build())
    y = run(session, X=x, residual=residual)
    np.testing.assert_array_equal(y, np.maximum(layer.bias[:, None, None] + residual, 0))


@pytest.mark.parametrize("layer", [LAYER, LINE], ids=["2d", "1d"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_empty_batch_gives_an_empty_result_as_a_dense_conv_does(layer, dtype):
    x = layer.x(0, *(9, 8)[: layer.geometry.axes], dtype=dtype)
    y = run(open_session(conv_spec(layer, dtype=dtype).build()), X=x)
    assert y.shape == layer.y_shape(x)
    dense = onnxruntime.InferenceSession(
        dense_conv_model(layer).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert run(dense, X=x.astype(np.float32)).shape == y.shape


def test_a_residual_of_the_shape_of_y_is_added_and_one_zero_is_none():
    x = LAYER.x(2, 7, 9)
    residual = np.random.default_rng(3).standard_normal(LAYER.y_shape(x)).astype(np.float32)
    session = open_session(conv_spec(LAYER, fed={"residual": None}, clip_min=0.0).build())
    assert_conv_close(run(session, X=x, residual=residual), LAYER, x, residual, clip_min=0.0)
    none = np.zeros(1, np.float32)
    assert_conv_close(run(session, X=x, residual=none), LAYER, x, clip_min=0.0)


def test_a_constant_residual_is_added():
    x = LAYER.x(1, 5, 6)
    residual = np.random.default_rng(3).standard_normal(LAYER.y_shape(x)).astype(np.float32)
    session = open_session(conv_spec(LAYER, (1, 5, 6), residual=residual).build())
    assert_conv_close(run(session, X=x), LAYER, x, residual)


def test_a_static_and_a_dynamic_size_give_the_same_layer():
    x = BIG.x(2, 15, 14)
    dynamic = open_session(conv_spec(BIG).build())
    static = open_session(conv_spec(BIG, (2, 15, 14)).build())
    assert_conv_close(run(static, X=x), BIG, x)
    assert_conv_close(run(dynamic, X=x), BIG, x)
    for other in (BIG.x(1, 1, 1), BIG.x(3, 40, 2), BIG.x(1, 7, 33)):
        assert_conv_close(run(dynamic, X=other), BIG, other)


@pytest.mark.parametrize("layer", [BIG, LINE], ids=["2d", "1d"])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_result_does_not_depend_on_the_number_of_threads(layer, batch):
    x = layer.x(batch, *(40, 40)[: layer.geometry.axes])
    model = conv_spec(layer).build()
    results = [
        run(open_session(model, threads=threads, config=config), X=x)
        for threads in (1, 2, 3)
        for config in ({}, {"fanin.threads": str(threads)})
    ]
    assert_conv_close(results[0], layer, x)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


def test_a_session_may_be_run_from_many_threads():
    session = open_session(conv_spec(BIG).build(), threads=2)
    inputs = [BIG.x(1, 5 + 3 * i, 9, seed=i) for i in range(4)]
    expected = [run(session, X=x) for x in inputs]

    def work(worker: int) -> bool:
        return all(
            np.array_equal(run(session, X=inputs[(worker + i) % 4]), expected[(worker + i) % 4])
            for i in range(20)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.parametrize("names", [("values",), ("indices", "rows"), ("bias",)])
def test_weights_that_are_not_constant_take_the_plain_path_and_are_reported(names, capfd):
    options = onnxruntime.SessionOptions()
    ort_ops.register(options)
    fed = {name: LAYER.weights[name].shape for name in names}
    model = conv_spec(LAYER, fed=fed).build().SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    told = [line for line in capfd.readouterr().err.splitlines() if "CondensedConv node" in line]
    assert len(told) == 1
    assert f"'the_layer': not constant: {', '.join(names)}; so nothing is packed" in told[0]
    x = LAYER.x(2, 7, 9)
    y = run(session, X=x, **{name: LAYER.weights[name] for name in names})
    assert_conv_close(y, LAYER, x)


def test_sessions_share_what_the_first_has_packed(capfd):
    model = conv_spec(of_its_own(BIG)).build().SerializeToString()

    def opened() -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 1
        ort_ops.register(options)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    sessions = [opened(), opened()]
    log = [line for line in capfd.readouterr().err.splitlines() if "CondensedConv node" in line]
    half = len(log) // 2
    assert half >= 1
    assert all("bytes, packed in" in line for line in log[:half])
    assert all("shared with another layer" in line for line in log[half:])
    x = BIG.x(1, 9, 9)
    np.testing.assert_array_equal(*(run(session, X=x) for session in sessions))


def test_memory_stays_flat_over_many_sessions(tmp_path):
    path = tmp_path / "layer.onnx"
    path.write_bytes(conv_spec(BIG).build().SerializeToString())
    # The condensed weights alone are 31 KB: a leak of them would be 6 MB.
    assert growth(path, BIG.x(1, 8, 8), warm=40, cycles=200) < 2 << 20


@pytest.mark.parametrize(
    ("geometry", "declared", "inferred"),
    [
        (GEOMETRY, ("batch", 6, 9, 9), ["batch", 8, 10, 4]),
        (GEOMETRY, (2, 6, 9, "w"), [2, 8, 10, None]),
        (BIG.geometry, ("n", 64, "h", "w"), ["n", 96, "h", "w"]),
        (LINE.geometry, ("n", 5, 30), ["n", 7, 14]),
        (ConvGeometry(5, 7, (1,)), ("n", 5, "l"), ["n", 7, "l"]),
    ],
    ids=str,
)
def test_shapes_are_known_after_the_node(geometry, declared, inferred):
    layer = ConvLayer.random(geometry, 3)
    session = open_session(replace(conv_spec(layer), x_shape=declared).build())
    shape = session.get_outputs()[0].shape
    assert [
        None if isinstance(dim, str) and dim.startswith("fanin_") else dim for dim in shape
    ] == (inferred)


def test_an_input_of_unknown_rank_is_taken():
    session = open_session(replace(conv_spec(LAYER), x_shape=None).build())
    x = LAYER.x(2, 7, 9)
    assert_conv_close(run(session, X=x), LAYER, x)


def test_later_nodes_run_on_the_inferred_shape():
    model = conv_spec(LAYER, ("batch", None, None)).build()
    model.graph.node[0].output[0] = "hidden"
    model.graph.node.append(helper.make_node("GlobalAveragePool", ["hidden"], ["Y"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y", TensorProto.FLOAT, None))
    session = open_session(model)
    x = LAYER.x(2, 7, 9)
    y = run(session, X=x)
    np.testing.assert_allclose(y[:, :, 0, 0], LAYER.expected(x).mean((2, 3)), atol=1e-5)


def test_an_optimized_model_can_be_saved_and_loaded(tmp_path):
    saved = tmp_path / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(saved)
    x = LAYER.x(1, 7, 9)
    expected = run(open_session(conv_spec(LAYER).build(), options=options), X=x)
    np.testing.assert_array_equal(run(open_session(str(saved)), X=x), expected)


def test_weights_in_a_file_beside_the_model_are_taken(tmp_path):
    path = tmp_path / "layer.onnx"
    onnx.save(conv_spec(BIG).build(), path, save_as_external_data=True, location="layer.data")
    x = BIG.x(1, 6, 6)
    assert_conv_close(run(open_session(str(path)), X=x), BIG, x)


@pytest.mark.parametrize("isa", ["sse9", "auto "])
def test_an_isa_that_this_cpu_lacks_is_refused_by_name(isa, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    with pytest.raises(Exception, match=f"CondensedConv node 'the_layer'.*FANIN_ISA.*'{isa}'"):
        open_session(conv_spec(LAYER).build())
