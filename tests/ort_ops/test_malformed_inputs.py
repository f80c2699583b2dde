"""Inputs that break the operator's contract: the run fails, the session stays usable."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from ._models import NODE, Layer, Spec, assert_close, open_session, spec_of

LAYER = Layer.random(in_features=12, out_features=6, fan_in=4, active=4)
SOUND = spec_of(LAYER)


@dataclass(frozen=True)
class BadRun:
    """A model that opens, and inputs that it must refuse."""

    reason: str
    feeds: dict[str, np.ndarray]
    spec: Spec = SOUND


def fed(**weights: np.ndarray) -> dict[str, np.ndarray]:
    return {"X": LAYER.x(2), **LAYER.weights, **weights}


ANY_X = replace(SOUND, x_shape=None)
FED_RESIDUAL = replace(SOUND, fed={"residual": None})
FED_WEIGHTS = replace(SOUND, fed=dict.fromkeys(LAYER.weights))


def with_entry(name: str, at: tuple[int, ...] | int, value: float) -> dict[str, np.ndarray]:
    array = LAYER.weights[name].copy()
    array[at] = value
    return fed(**{name: array})


RUNS: dict[str, BadRun] = {
    "x-scalar": BadRun(r"X is a scalar", {"X": np.array(1, np.float32)}, ANY_X),
    "x-last-dimension": BadRun(r"X.*\[2, 11\].*12", {"X": LAYER.x(2)[:, :11].copy()}, ANY_X),
    "x-empty-last-dimension": BadRun(r"X.*\[2, 0\]", {"X": np.zeros((2, 0), np.float32)}, ANY_X),
    "x-transposed": BadRun(r"X.*\[12, 2\]", {"X": LAYER.x(2).T.copy()}, ANY_X),
    "residual-of-another-batch": BadRun(
        r"residual.*\[3, 6\].*\[2, 6\]",
        {"X": LAYER.x(2), "residual": np.zeros((3, 6), np.float32)},
        FED_RESIDUAL,
    ),
    "residual-to-broadcast": BadRun(
        r"residual.*\[1, 6\].*\[2, 6\]",
        {"X": LAYER.x(2), "residual": np.zeros((1, 6), np.float32)},
        FED_RESIDUAL,
    ),
    "residual-scalar": BadRun(
        r"residual.*\[\].*\[2, 6\]",
        {"X": LAYER.x(2), "residual": np.zeros((), np.float32)},
        FED_RESIDUAL,
    ),
    "residual-one-nonzero": BadRun(
        r"residual.*holds 0\.5.*must hold 0",
        {"X": LAYER.x(2), "residual": np.full(1, 0.5, np.float32)},
        FED_RESIDUAL,
    ),
    "residual-one-nonzero-empty-batch": BadRun(
        r"residual.*holds 0\.5.*must hold 0",
        {"X": LAYER.x(0), "residual": np.full(1, 0.5, np.float32)},
        FED_RESIDUAL,
    ),
    "index-out-of-range": BadRun(
        r"indices\[3, 3\]", with_entry("indices", (3, 3), 12), FED_WEIGHTS
    ),
    "rows-too-large": BadRun(r"rows\[3\].*6", with_entry("rows", 3, 6), FED_WEIGHTS),
    "rows-negative": BadRun(r"rows\[0\].*-1", with_entry("rows", 0, -1), FED_WEIGHTS),
    "rows-repeated": BadRun(
        r"rows\[1\].*increase", with_entry("rows", 1, LAYER.rows[0]), FED_WEIGHTS
    ),
    "values-fewer": BadRun(
        r"values.*\[3, 4\].*\[4, 4\]", fed(values=LAYER.values[:3]), FED_WEIGHTS
    ),
    "values-rank-1": BadRun(
        r"values.*\[16\].*\[active, fan_in\]", fed(values=LAYER.values.ravel()), FED_WEIGHTS
    ),
    "values-scalar": BadRun(
        r"values.*\[\].*\[active, fan_in\]", fed(values=np.array(1, np.float32)), FED_WEIGHTS
    ),
    "rows-fewer": BadRun(r"rows.*\[3\].*4 rows", fed(rows=LAYER.rows[:3]), FED_WEIGHTS),
    "bias-too-short": BadRun(r"bias.*\[5\]", fed(bias=LAYER.bias[:5]), FED_WEIGHTS),
    "fan-in-0": BadRun(
        r"fan-in is 0",
        fed(values=np.zeros((4, 0), np.float32), indices=np.zeros((4, 0), np.uint16)),
        FED_WEIGHTS,
    ),
    "indices-out-of-range-empty-batch": BadRun(
        r"indices\[0, 0\]",
        {**with_entry("indices", (0, 0), 65535), "X": LAYER.x(0)},
        FED_WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_malformed_input_is_refused_and_the_session_stays_usable(name):
    bad = RUNS[name]
    session = open_session(bad.spec.build())
    with pytest.raises(Exception, match=NODE) as refusal:
        session.run(None, bad.feeds)
    assert re.search(bad.reason, str(refusal.value), re.DOTALL), str(refusal.value)

    x = LAYER.x(2)
    good = {"X": x}
    good |= {name: LAYER.weights.get(name, np.zeros(1, np.float32)) for name in bad.spec.fed}
    assert_close(session.run(None, good)[0], LAYER, x)


def test_a_batch_that_contradicts_the_declared_shape_is_refused():
    """Only the declared batch is packed; ONNX Runtime merely warns about another one."""
    model = replace(SOUND, x_shape=("anything", 12)).build()
    graph = model.graph
    graph.node[0].input[0] = "shaped"
    graph.node.insert(0, helper.make_node("Reshape", ["X", "shape"], ["shaped"]))
    graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)))
    graph.value_info.append(helper.make_tensor_value_info("shaped", TensorProto.FLOAT, (1, 12)))
    session = open_session(model)
    x = LAYER.x(64)
    with pytest.raises(Exception, match=rf"{NODE}.*X.*\[64, 12\].*contradicts"):
        session.run(None, {"X": x, "shape": np.array([64, 12])})
    y = session.run(None, {"X": x[:1], "shape": np.array([1, 12])})[0]
    assert_close(y, LAYER, x[:1])
