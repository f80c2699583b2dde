"""Random convolutional networks: whatever is folded and fused, they compute what torch does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanin.export.forms import Chooser
from fanin.export.lowering import lower
from fanin.export.passes.condense import CondensePass
from fanin.ort_ops import register

from .conv_nets import UNARY, ConvNet

STEPS = st.one_of(
    st.tuples(
        st.just("conv"),
        st.fixed_dictionaries(
            {
                "out": st.sampled_from([4, 6, 8]),
                "kernel": st.sampled_from([1, 1, 3]),
                "stride": st.sampled_from([1, 1, 2]),
                "pad": st.sampled_from([None, 0]),
                "dilation": st.sampled_from([1, 1, 2]),
                "ablated": st.sampled_from([0.0, 0.4]),
                "bias": st.booleans(),
            }
        ),
    ),
    st.tuples(st.just("grouped"), st.just({})),
    st.tuples(st.just("unary"), st.fixed_dictionaries({"op": st.sampled_from(sorted(UNARY))})),
    st.tuples(
        st.just("per_channel"), st.fixed_dictionaries({"op": st.sampled_from(["Add", "Mul"])})
    ),
    st.tuples(st.sampled_from(["batch_norm", "relu6", "residual", "concat"]), st.just({})),
    st.tuples(
        st.sampled_from(["max_pool", "average_pool"]),
        st.fixed_dictionaries({"pad": st.sampled_from([0, 1])}),
    ),
)

NETS = {
    "seed": st.integers(0, 2**32 - 1),
    "steps": st.lists(STEPS, max_size=7),
    "pooled": st.booleans(),
    # Above what the layers have, some stay dense: the passes narrow dense layers as well.
    "threshold": st.sampled_from([0.0, 0.6, 0.72]),
    "policy": st.sampled_from(["condensed", "condensed", "structured", "dense"]),
    "fold": st.sampled_from([True, True, False]),
}


def build(seed: int, steps: list, pooled: bool) -> ConvNet:
    net = ConvNet(seed)
    net.conv(8, 3, ablated=0.4)
    for step, options in steps:
        if step == "grouped":
            if net.channels % 2 == 0:
                net.conv(6, 3, group=2, ablated=0.3)
        else:
            getattr(net, step)(**options)
    net.conv(6, 1, ablated=0.4)
    net.unary("Relu")
    if pooled:
        net.global_average()
    net.head(matmul=pooled)
    return net


def lowered(net: ConvNet, threshold: float, policy: str, fold: bool) -> onnx.ModelProto:
    model = ir.serde.deserialize_model(net.model())
    CondensePass(min_sparsity=threshold)(model)
    lower(model, Chooser.of(policy, 1, False), fold=fold)
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def outputs(proto: onnx.ModelProto, x: np.ndarray, *, library: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if library:
        register(options)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]


def check(seed, steps, pooled, threshold, policy, fold) -> None:
    net = build(seed, steps, pooled)
    proto = lowered(net, threshold, policy, fold)
    expected = net.value.numpy()
    # Roundings of float32 grow with the values on the way, not with the final ones alone.
    scale = max(1.0, *(float(value.abs().max()) for _, value in net.past))
    for library in (False, True):
        actual = outputs(proto, net.x, library=library)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5 * scale)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(**NETS)
def test_exported_network_computes_what_torch_does(seed, steps, pooled, threshold, policy, fold):
    check(seed, steps, pooled, threshold, policy, fold)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(**NETS)
def test_exported_network_computes_what_torch_does_500_times(
    seed, steps, pooled, threshold, policy, fold
):
    check(seed, steps, pooled, threshold, policy, fold)
