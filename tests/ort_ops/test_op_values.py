"""Results of CondensedGemm in ONNX Runtime, compared with the float64 reference."""

from dataclasses import replace

import numpy as np
import pytest

from ._models import NO_RESIDUAL, Layer, assert_close, open_session, run, spec_of

BATCHES = [1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 64, 100]


@pytest.mark.parametrize("index_type", [np.uint16, np.int32])
@pytest.mark.parametrize("padded", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("active", [None, 11], ids=["all-active", "ablated"])
def test_agrees_with_the_reference_at_every_batch(index_type, padded, active):
    layer = Layer.random(active=active, padded=padded, index_type=index_type)
    session = open_session(spec_of(layer).build(), threads=2)
    for batch in BATCHES:
        x = layer.x(batch, seed=batch)
        assert_close(run(session, X=x), layer, x)


@pytest.mark.parametrize("batch", BATCHES)
def test_agrees_with_the_reference_when_the_batch_is_static(batch):
    layer = Layer.random(active=15, padded=True)
    spec = replace(spec_of(layer), x_shape=(batch, layer.in_features))
    x = layer.x(batch)
    assert_close(run(open_session(spec.build(), threads=2), X=x), layer, x)


@pytest.mark.parametrize("fan_in", [*range(1, 41), 64, 100])
def test_agrees_with_the_reference_at_every_fan_in(fan_in):
    layer = Layer.random(in_features=131, out_features=33, fan_in=fan_in, active=29)
    session = open_session(spec_of(layer).build())
    for batch in (1, 5, 16):
        x = layer.x(batch)
        assert_close(run(session, X=x), layer, x)


@pytest.mark.parametrize("sizes", [(784, 512, 78), (3072, 768, 307), (1000, 3000, 10)])
def test_agrees_with_the_reference_at_real_sizes(sizes):
    layer = Layer.random(*sizes, active=sizes[1] // 2)
    session = open_session(spec_of(layer).build(), threads=2)
    for batch in (1, 32):
        x = layer.x(batch)
        assert_close(run(session, X=x), layer, x)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 3, 4), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_any_leading_dimensions(leading, static):
    layer = Layer.random(active=12)
    declared = leading if static else [f"d{axis}" for axis in range(len(leading))]
    spec = replace(spec_of(layer), x_shape=(*declared, layer.in_features))
    x = layer.x(*leading)
    assert_close(run(open_session(spec.build()), X=x), layer, x)


@pytest.mark.parametrize("leading", [(0,), (0, 3), (3, 0), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["symbolic", "static"])
def test_an_empty_batch_gives_an_empty_result(leading, static):
    layer = Layer.random()
    declared = leading if static else [f"d{axis}" for axis in range(len(leading))]
    spec = replace(spec_of(layer), x_shape=(*declared, layer.in_features))
    y = run(open_session(spec.build()), X=layer.x(*leading))
    assert y.shape == (*leading, layer.out_features)


def test_without_active_rows_the_result_is_the_bias():
    layer = Layer.random(active=0)
    x = layer.x(2)
    y = run(open_session(spec_of(layer).build()), X=x)
    np.testing.assert_array_equal(y, np.tile(layer.bias, (2, 1)))


@pytest.mark.parametrize(
    ("in_features", "index_type"), [(65_536, np.uint16), (70_000, np.int32)], ids=["u16", "i32"]
)
def test_the_last_column_of_a_wide_layer(in_features, index_type):
    layer = Layer.random(in_features, out_features=3, fan_in=5, index_type=index_type)
    layer.indices[:, -1] = in_features - 1
    x = layer.x(2)
    assert_close(run(open_session(spec_of(layer).build()), X=x), layer, x)


@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
@pytest.mark.parametrize("leading", [(), (1,), (9,), (2, 3)], ids=str)
def test_a_residual_of_the_output_shape_is_added(leading, constant):
    layer = Layer.random(active=12)
    shape = (*leading, layer.out_features)
    residual = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    spec = replace(
        spec_of(layer, residual=residual),
        x_shape=(*leading, layer.in_features),
        fed={} if constant else {"residual": shape},
    )
    x = layer.x(*leading)
    feeds = {} if constant else {"residual": residual}
    assert_close(run(open_session(spec.build()), X=x, **feeds), layer, x, residual)


def test_a_fed_residual_may_also_be_none():
    layer = Layer.random()
    spec = replace(spec_of(layer), fed={"residual": None})
    x = layer.x(4)
    session = open_session(spec.build())
    assert_close(run(session, X=x, residual=NO_RESIDUAL), layer, x)
    residual = np.ones((4, layer.out_features), np.float32)
    assert_close(run(session, X=x, residual=residual), layer, x, residual)


def test_where_the_output_itself_has_shape_1_the_residual_is_added():
    layer = Layer.random(out_features=1)
    residual = np.array([2.5], np.float32)
    spec = replace(spec_of(layer, residual=residual), x_shape=(layer.in_features,))
    x = layer.x()
    assert_close(run(open_session(spec.build()), X=x), layer, x, residual)


@pytest.mark.parametrize(
    "clip",
    [
        {"clip_min": 0.0},
        {"clip_max": 0.5},
        {"clip_min": 0.0, "clip_max": 6.0},
        {"clip_min": -0.25, "clip_max": -0.25},
        {"clip_min": float("-inf"), "clip_max": float("inf")},
    ],
    ids=str,
)
def test_clips_after_the_residual(clip):
    layer = Layer.random(active=12)
    spec = replace(spec_of(layer, **clip), fed={"residual": None})
    session = open_session(spec.build())
    for batch in (1, 17):
        x = layer.x(batch)
        residual = 2 * layer.x(batch, seed=3)[:, : layer.out_features]
        y = run(session, X=x, residual=residual)
        assert_close(y, layer, x, residual, **clip)
        assert y.min() >= clip.get("clip_min", -np.inf)
        assert y.max() <= clip.get("clip_max", np.inf)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("batch", [1, 2, 16, 33])
def test_a_special_value_reaches_exactly_the_neurons_with_a_weight_there(special, batch):
    layer = Layer.random(active=14, padded=True)
    session = open_session(spec_of(layer).build())
    for column in range(layer.in_features):
        x = layer.x(batch)
        x[batch // 2, column] = special
        y = run(session, X=x)
        true_entry = np.ones(layer.indices.shape, bool)
        true_entry[:, 1:] = layer.indices[:, 1:] != layer.indices[:, :-1]
        touched = layer.rows[np.any((layer.indices == column) & true_entry, axis=1)]
        affected = np.zeros(y.shape, bool)
        affected[batch // 2, touched] = True
        np.testing.assert_array_equal(~np.isfinite(y), affected)
        # Padding repeats the last column with weight 0: multiplied in, it would turn Inf into NaN.
        if not np.isnan(special):
            assert not np.isnan(y).any()


def test_a_stored_zero_is_a_weight():
    layer = Layer.random(out_features=2, fan_in=3)
    layer.values[0, 1] = 0.0
    x = layer.x(1)
    x[0, layer.indices[0, 1]] = np.inf
    y = run(open_session(spec_of(layer).build()), X=x)
    assert np.isnan(y[0, 0])


def test_nan_passes_the_clip():
    layer = Layer.random()
    x = np.full((3, layer.in_features), np.nan, np.float32)
    y = run(open_session(spec_of(layer, clip_min=0.0, clip_max=6.0).build()), X=x)
    assert np.isnan(y).all()


def test_special_biases_and_residuals_are_kept():
    layer = Layer.random(active=12)
    layer.bias[:3] = np.nan, np.inf, -np.inf
    residual = np.zeros((2, layer.out_features), np.float32)
    residual[0, -3:] = np.nan, np.inf, -np.inf
    spec = spec_of(layer, residual=residual)
    x = layer.x(2)
    assert_close(run(open_session(spec.build()), X=x), layer, x, residual)
