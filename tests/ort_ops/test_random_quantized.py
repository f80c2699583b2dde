"""Random nodes of the ops on 8-bit integers; tools/random_cases.py --op quantized runs more."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.ort_ops import _native
from fanin.ort_ops.contract import QUANTIZED_OPS

from . import _random_quantized
from ._quantized import QLINEAR_GEMM
from ._random_quantized import check_node, draw_node, exact_value
from ._random_tally import RandomCaseError, Tally

SEED = 1


def check(seed: int, cases: int) -> Tally:
    total = Tally()
    for number in range(cases):
        total.add(check_node(seed, number))
    return total


def test_every_isa_the_functions_and_the_qdq_graph_give_the_same_integers():
    total = check(SEED, 40)
    assert total.cases == 40
    every = {*QUANTIZED_OPS, *(f"isa {isa}" for isa in _native.supported_isas())}
    assert set(total.routes) >= every | {
        "function in onnx's ReferenceEvaluator",
        "function in ONNX Runtime without the library",
        "QDQ graph in the ReferenceEvaluator",
        "QDQ graph in ONNX Runtime without the library",
    }


@pytest.mark.slow
def test_twenty_thousand_random_nodes():
    assert check(SEED + 1, 20_000).cases == 20_000


def a_case() -> int:
    """The number of a layer whose outputs are not all at an end of their range."""
    for number in range(1000):
        node = draw_node(7, number)
        if node.op == QLINEAR_GEMM:
            value, _ = exact_value(node)
            y = np.rint(value) + int(node.arrays["y_zero_point"])
            if ((y > -100) & (y < 100)).any() and not np.isfinite(node.attributes["clip_min"]):
                return number
    raise AssertionError("no such case")


@pytest.mark.parametrize("which", ["run", "qdq_model"])
def test_a_wrong_integer_is_detected(which: str, monkeypatch: pytest.MonkeyPatch):
    number = a_case()
    original = getattr(_random_quantized, which)

    def tampered(*arguments, **named):
        got = original(*arguments, **named)
        if which == "run":
            got.reshape(-1)[0] ^= 1
        else:  # The bias is forgotten.
            (bias,) = (one for one in got.graph.initializer if one.name == "bias_scale")
            bias.raw_data = bytes(len(bias.raw_data))
        return got

    monkeypatch.setattr(_random_quantized, which, tampered)
    with pytest.raises(RandomCaseError, match=rf"(?s)wrong.*--seed 7 --group {number}"):
        check_node(7, number)
