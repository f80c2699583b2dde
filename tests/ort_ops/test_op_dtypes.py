"""CondensedGemm with float16 and bfloat16 weights and float16 activations in ONNX Runtime."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ._models import NO_RESIDUAL, Layer, open_session, run, spec_of

X_TYPES = {"x-float32": np.float32, "x-float16": np.float16}
VALUE_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

every_x_type = pytest.mark.parametrize("x_type", X_TYPES.values(), ids=X_TYPES)
every_value_type = pytest.mark.parametrize("value_type", VALUE_TYPES.values(), ids=VALUE_TYPES)
every_half_type = pytest.mark.parametrize("value_type", [np.float16, ml_dtypes.bfloat16])


def layer_of(value_type, **options):
    layer = Layer.random(**options)
    return replace(layer, values=layer.values.astype(value_type))


def typed_spec(layer, x_type, *, residual=NO_RESIDUAL, **clip):
    return replace(
        spec_of(layer, residual=residual.astype(x_type), **clip),
        x_type=helper.np_dtype_to_tensor_dtype(np.dtype(x_type)),
        y_type=helper.np_dtype_to_tensor_dtype(np.dtype(x_type)),
    )


def assert_close(y, layer, x, residual=None, **clip):
    """Compare with float64 within float32's bound, plus half a unit of float16 for a float16 Y."""
    want = layer.expected(x, residual, **clip)
    wide = {
        name: np.abs(array.astype(np.float64))
        for name, array in (("values", layer.values), ("bias", layer.bias))
    }
    magnitude = replace(layer, **wide).expected(
        np.abs(x), None if residual is None else np.abs(residual)
    )
    assert y.dtype == x.dtype
    bound = (layer.values.shape[1] + 3) * 2.0**-24 * magnitude
    if y.dtype == np.float16:
        bound = bound + 2.0**-11 * np.abs(want) + 2.0**-25
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(y[~finite], want[~finite].astype(y.dtype))
    assert (np.abs(y[finite] - want[finite]) <= bound[finite]).all()


@every_x_type
@every_value_type
@pytest.mark.parametrize("index_type", [np.uint16, np.int32])
def test_agrees_with_the_reference_on_the_rounded_weights(x_type, value_type, index_type):
    layer = layer_of(value_type, active=15, padded=True, index_type=index_type)
    spec = replace(typed_spec(layer, x_type, clip_min=-0.5, clip_max=2.0), fed={"residual": None})
    session = open_session(spec.build(), threads=2)
    assert session.get_outputs()[0].type == session.get_inputs()[0].type
    assert session.get_outputs()[0].shape == ["batch", layer.out_features]
    for batch in (1, 2, 5, 33, 100):
        x = layer.x(batch).astype(x_type)
        residual = layer.x(batch, seed=2)[:, : layer.out_features].astype(x_type)
        y = run(session, X=x, residual=residual)
        assert_close(y, layer, x, residual, clip_min=-0.5, clip_max=2.0)
        none = run(session, X=x, residual=np.zeros(1, x_type))
        assert_close(none, layer, x, clip_min=-0.5, clip_max=2.0)


@every_x_type
@every_value_type
def test_agrees_with_the_reference_for_non_constant_weights(x_type, value_type):
    layer = layer_of(value_type, active=15, padded=True)
    spec = replace(typed_spec(layer, x_type), fed={"values": None, "indices": None})
    session = open_session(spec.build())
    feeds = {"indices": layer.indices}
    # NumPy inputs cannot be bfloat16; an OrtValue made of the bits can.
    kind = helper.np_dtype_to_tensor_dtype(layer.values.dtype)
    bits = layer.values.view(np.uint16) if kind == TensorProto.BFLOAT16 else layer.values
    values = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
    for batch in (0, 1, 9):
        x = layer.x(batch).astype(x_type)
        ortvalues = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in {"X": x, **feeds}.items()
        }
        y = session.run_with_ort_values(None, {**ortvalues, "values": values})[0].numpy()
        assert y.shape == (batch, layer.out_features)
        assert_close(y, layer, x)


@every_half_type
@pytest.mark.parametrize("batch", [1, 16])
def test_a_special_value_reaches_exactly_the_neurons_with_a_weight_there(value_type, batch):
    layer = layer_of(value_type, active=14, padded=True)
    session = open_session(typed_spec(layer, np.float16).build())
    for column in range(layer.in_features):
        x = layer.x(batch).astype(np.float16)
        x[batch // 2, column] = np.inf
        assert_close(run(session, X=x), layer, x)


def test_results_beyond_float16_are_infinite():
    layer = replace(Layer.random(), bias=np.linspace(65500, 65540, 19).astype(np.float32))
    session = open_session(typed_spec(layer, np.float16).build())
    y = run(session, X=np.zeros((1, layer.in_features), np.float16))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y[0], layer.bias.astype(np.float16))
    assert np.isinf(y).any()
    assert np.isfinite(y).any()


@every_half_type
def test_padding_of_16_bit_values_must_be_plus_zero(value_type):
    layer = layer_of(value_type)
    layer.indices[2, -1] = layer.indices[2, -2]
    layer.values[2, -1] = -0.0
    with pytest.raises(Exception, match=r"the_layer.*indices\[2, 6\] repeats column.*-0"):
        open_session(typed_spec(layer, np.float32).build())


def test_a_residual_of_another_type_than_x_is_refused():
    layer = Layer.random()
    spec = spec_of(layer, residual=np.zeros(1, np.float16))
    with pytest.raises(Exception, match="the_layer"):
        open_session(spec.build())


def test_a_float16_residual_that_is_neither_zero_nor_of_the_output_shape_is_refused():
    layer = Layer.random()
    spec = typed_spec(layer, np.float16, residual=np.full(1, 0.5))
    with pytest.raises(Exception, match=r"residual has shape \[1\] and holds 0.5"):
        open_session(spec.build())
