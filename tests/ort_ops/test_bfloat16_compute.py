"""CondensedGemm in bfloat16: x is rounded and sums are float32, on every kernel and CPU."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops import _native
from fanin.ort_ops.contract import COMPUTE_BFLOAT16
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.reference import round_bfloat16

from ._models import open_session, run
from .test_kernels import assert_close, make_layer, unaligned

BFLOAT16 = ml_dtypes.bfloat16
PAIRS = "bf16-gemm-pairs32-avx512bf16"
# The instruction sets choose among these; the scalar one packs nothing.
KERNELS = [row.name for row in _native.kernel_table() if row.supported and row.weights != "float16"]
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def in_bfloat16(layer):
    return replace(layer, values=layer.values.astype(BFLOAT16))


def pack(layer, **options):
    return layer.pack(compute="bfloat16", **options)


def assert_right(layer, x, y, *end):
    """Against float64, with x rounded and the bound of float32 sums."""
    wide = replace(layer, values=layer.values.astype(np.float32))
    assert_close(wide, round_bfloat16(x), y, *end)


def test_rounding_is_that_of_ml_dtypes():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = np.arange(0, 2**32, 0x8000, dtype=np.uint64).astype(np.uint32)
    for x in (bits.view(np.float32), ties.view(np.float32)):
        with np.errstate(invalid="ignore"):
            want = x.astype(BFLOAT16).astype(np.float32)
        np.testing.assert_array_equal(round_bfloat16(x), want)


@every_kernel
def test_all_fan_ins_up_to_40_and_their_tails(kernel):
    rng = np.random.default_rng(1)
    for fan_in in range(1, 41):
        in_features = int(rng.integers(fan_in, 8 * fan_in + 1))
        out_features = int(rng.integers(1, 150))
        active = int(rng.integers(0, out_features + 1))
        layer = in_bfloat16(make_layer(rng, in_features, out_features, fan_in, active=active))
        gemm = pack(layer, kernel=kernel)
        for batch in (1, 2, 5, fan_in, 31 + fan_in):
            x = unaligned(rng.standard_normal((batch, in_features)).astype(np.float32))
            residual = rng.standard_normal((batch, out_features)).astype(np.float32)
            y = gemm.run(x, residual=residual, clip_min=-0.5, clip_max=1.5)
            assert_right(layer, x, y, residual, (-0.5, 1.5))


@pytest.mark.parametrize("isa", _native.supported_isas())
def test_every_batch_up_to_70_on_every_instruction_set(isa):
    rng = np.random.default_rng(2)
    layer = in_bfloat16(make_layer(rng, 203, 77, 21))
    gemm = pack(layer, isa=isa)
    x = rng.standard_normal((70, 203)).astype(np.float32)
    for batch in range(71):
        assert_right(layer, x[:batch], gemm.run(x[:batch]))


def test_pairs_are_taken_where_they_suit_the_cpu_and_windows_below():
    layer = in_bfloat16(make_layer(np.random.default_rng(3), 512, 64, 50))
    few, many = pack(layer).info()
    assert few.kernel.startswith("f32-bf16w-") or few.kernel.endswith("scalar")
    rows = {row.name: row for row in _native.kernel_table()}
    suited = PAIRS in rows and rows[PAIRS].supported and rows[PAIRS].suits_cpu
    assert (many.kernel == PAIRS) == suited
    assert PAIRS not in {info.kernel for info in layer.pack().info()}


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != PAIRS])
@pytest.mark.parametrize("threads", [1, 5])
def test_a_kernel_of_float32_gives_the_bits_that_it_gives_for_rounded_x(kernel, threads):
    # 700 samples are rounded in more than one slice.
    rng = np.random.default_rng(4)
    layer = in_bfloat16(make_layer(rng, 4000, 37, 9))
    x = rng.standard_normal((700, 4000)).astype(np.float32)
    residual = rng.standard_normal((700, 37)).astype(np.float32)
    for batch in (1, 9, 700):
        end = {"residual": residual[:batch], "threads": threads}
        y = pack(layer, kernel=kernel).run(x[:batch], **end)
        want = layer.pack(kernel=kernel).run(round_bfloat16(x[:batch]), **end)
        np.testing.assert_array_equal(y, want)


@every_kernel
@pytest.mark.parametrize("batch", [3, 40, 257])
def test_results_do_not_depend_on_threads(kernel, batch):
    rng = np.random.default_rng(5)
    layer = in_bfloat16(make_layer(rng, 1500, 800, 90, active=750))
    x = rng.standard_normal((batch, 1500)).astype(np.float32)
    want = pack(layer, kernel=kernel).run(x, clip_min=0.0)
    assert_right(layer, x, want, None, (0.0, np.inf))
    for threads in (2, 7, 64):
        packed = pack(layer, kernel=kernel, threads=threads)
        np.testing.assert_array_equal(packed.run(x, clip_min=0.0, threads=threads), want)


@every_kernel
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("batch", [1, 11, 33])
def test_what_is_not_finite_reaches_exactly_the_outputs_with_a_weight_there(kernel, special, batch):
    """Beside a weight in a pair are another column and, at the end of a row, none."""
    rng = np.random.default_rng(7)
    layer = in_bfloat16(make_layer(rng, 400, 150, 13, active=140))
    gemm = pack(layer, kernel=kernel)
    x = rng.standard_normal((batch, 400)).astype(np.float32)
    clean = np.delete(np.arange(batch), batch // 2)
    for column in (0, 1, 15, 31, 62, 399, *rng.integers(0, 400, 5)):
        poisoned = x.copy()
        poisoned[batch // 2, column] = special
        want = np.ones((batch, 150), bool)
        stored, entry = np.nonzero(layer.indices == column)
        want[batch // 2, layer.rows[stored]] = False
        y = gemm.run(poisoned)
        np.testing.assert_array_equal(np.isfinite(y), want)
        if not np.isnan(special):
            signs = np.sign(layer.values[stored, entry].astype(np.float32)) * np.sign(special)
            np.testing.assert_array_equal(y[batch // 2, layer.rows[stored]], signs * np.inf)
        np.testing.assert_array_equal(y[clean], gemm.run(x)[clean])


@every_kernel
@pytest.mark.parametrize("batch", [1, 25])
def test_stored_zeros_are_multiplied_with_x_and_padding_is_not(kernel, batch):
    layer = in_bfloat16(make_layer(np.random.default_rng(8), 6, 2, 3))
    layer = replace(
        layer,
        values=np.array([[2, 0, 0], [1, 0, 3]], BFLOAT16),
        indices=np.array([[3, 3, 3], [1, 4, 5]], np.int32),
        bias=np.zeros(2, np.float32),
    )
    gemm = pack(layer, kernel=kernel)
    x = np.zeros((batch, 6), np.float32)
    x[:, 3] = np.inf
    np.testing.assert_array_equal(gemm.run(x), np.tile([np.inf, 0], (batch, 1)))
    x[:, 3], x[:, 4] = 0, np.inf
    np.testing.assert_array_equal(gemm.run(x), np.tile([0, np.nan], (batch, 1)))


@every_kernel
def test_subnormal_numbers_are_worth_at_most_what_they_are(kernel):
    """AVX512-BF16 takes them for 0, so that a sum is off by no more than their products."""
    layer = in_bfloat16(make_layer(np.random.default_rng(9), 64, 40, 20))
    layer = replace(layer, bias=np.zeros(40, np.float32))
    x = np.full((20, 64), 1e-39, np.float32)
    y = pack(layer, kernel=kernel).run(x)
    bound = 2 * np.abs(layer.values.astype(np.float64)).sum(1) * 1e-39
    assert (np.abs(y) <= bound).all()


def test_more_columns_than_16_bits_address():
    rng = np.random.default_rng(10)
    layer = make_layer(rng, 300_000, 97, 500)
    layer.indices[::3, -1] = 299_999
    layer = in_bfloat16(layer)
    x = rng.standard_normal((6, 300_000)).astype(np.float32)
    assert_right(layer, x, pack(layer).run(x))


def test_float16_activations_are_rounded_too():
    rng = np.random.default_rng(11)
    layer = in_bfloat16(make_layer(rng, 300, 70, 40))
    x = rng.standard_normal((33, 300)).astype(np.float16)
    y = pack(layer).run(x)
    want = pack(layer).run(x.astype(np.float32))
    np.testing.assert_array_equal(y, want.astype(np.float16))


def test_the_plain_kernel_rounds_as_well():
    rng = np.random.default_rng(12)
    layer = in_bfloat16(make_layer(rng, 90, 20, 11, active=17))
    x = rng.standard_normal((3, 90)).astype(np.float32)
    plain = _native.run_plain(**layer.arrays(), x=x, compute="bfloat16")
    assert_right(layer, x, plain)
    rounded = _native.run_plain(**layer.arrays(), x=round_bfloat16(x))
    np.testing.assert_array_equal(plain, rounded)


def test_contradictions_are_refused():
    layer = make_layer(np.random.default_rng(13), 20, 10, 4)
    with pytest.raises(ValueError, match="values is float32, with compute bfloat16 it must be bfl"):
        pack(layer)
    with pytest.raises(ValueError, match="compute is 'int8', it must be float32 or bfloat16"):
        layer.pack(compute="int8")
    if PAIRS in KERNELS:
        with pytest.raises(ValueError, match=f"'{PAIRS}' computes in bfloat16, the layer in float"):
            in_bfloat16(layer).pack(kernel=PAIRS)


def weight_of(fan_in=40):
    layer = make_layer(np.random.default_rng(14), 300, 70, fan_in, active=66, index_type=np.uint16)
    return CondensedWeight(**layer.arrays()).astype("bfloat16"), layer


def rounded_by_hand(weight, layer, x):
    wide = weight.values.astype(np.float32)
    return replace(layer, values=wide).sums(round_bfloat16(x))


@pytest.mark.parametrize("batch", [1, 8, 70])
@pytest.mark.parametrize("isa", _native.supported_isas())
def test_the_op_rounds_on_every_instruction_set(isa, batch, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", isa)
    weight, layer = weight_of()
    x = np.random.default_rng(15).standard_normal((batch, 300)).astype(np.float32)
    model = condensed_layer_model(weight, None, compute=COMPUTE_BFLOAT16)
    y = run(open_session(model), x=x)
    want, magnitude = rounded_by_hand(weight, layer, x)
    assert (np.abs(y - want) <= 42 * 2.0**-23 * magnitude).all()
    # The float32 product is another one.
    assert (np.abs(y - layer.sums(x)[0]) > 1e-3).any()


@pytest.mark.parametrize("x_dtype", ["float32", "float16"])
@pytest.mark.parametrize("opset", [17, 20, 23])
def test_the_function_computes_the_same(x_dtype, opset):
    weight, layer = weight_of()
    x = np.random.default_rng(16).standard_normal((9, 300)).astype(x_dtype)
    model = condensed_layer_model(
        weight, None, compute=COMPUTE_BFLOAT16, x_dtype=x_dtype, opset=opset
    )
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want, magnitude = rounded_by_hand(weight, layer, x.astype(np.float32))
    unit = 2.0**-10 if x_dtype == "float16" else 42 * 2.0**-23
    assert (np.abs(session.run(None, {"x": x})[0] - want) <= unit * magnitude).all()


def test_onnx_evaluates_the_function_likewise():
    weight, layer = weight_of()
    x = np.random.default_rng(17).standard_normal((2, 300)).astype(np.float32)
    model = condensed_layer_model(weight, None, compute=COMPUTE_BFLOAT16)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    want, magnitude = rounded_by_hand(weight, layer, x)
    assert (np.abs(y - want) <= 42 * 2.0**-23 * magnitude).all()


@pytest.mark.parametrize(
    ("kind", "compute", "reason"),
    [
        ("bfloat16", 10, r"attribute compute is 10, it must be 1 \(float32\) or 16 \(bfloat16\)"),
        ("bfloat16", 16.0, "attribute compute must be an INT"),
        ("float32", 16, "values is float32, with compute bfloat16 it must be bfloat16"),
        ("float16", 16, "values is float16, with compute bfloat16 it must be bfloat16"),
    ],
)
def test_a_wrong_attribute_is_refused_with_the_node(kind, compute, reason):
    weight, _ = weight_of()
    wide = replace(weight, values=weight.values.astype(np.float32))
    model = condensed_layer_model(wide.astype(kind), None)
    (node,) = model.graph.node
    node.attribute.append(onnx.helper.make_attribute("compute", compute))
    with pytest.raises(Exception, match=f"CondensedGemm node 'layer': {reason}"):
        open_session(model)


def test_weights_that_are_no_constants_are_rounded_for():
    weight, layer = weight_of()
    model = condensed_layer_model(weight, None, compute=COMPUTE_BFLOAT16)
    (bias,) = [tensor for tensor in model.graph.initializer if tensor.name == "bias"]
    model.graph.initializer.remove(bias)
    kind = onnx.helper.make_tensor_value_info("bias", onnx.TensorProto.FLOAT, [70])
    model.graph.input.append(kind)
    x = np.random.default_rng(18).standard_normal((5, 300)).astype(np.float32)
    y = run(open_session(model), x=x, bias=weight.bias)
    want, magnitude = rounded_by_hand(weight, layer, x)
    assert (np.abs(y - want) <= 42 * 2.0**-23 * magnitude).all()
