"""Random convolutions; tools/random_cases.py --op conv-node runs more of them."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from . import _random_conv_nodes
from ._random_conv_nodes import check_conv, dense_sums, draw_conv
from ._random_tally import RandomCaseError, Tally

SEED = 1
KINDS = {
    "1 axes",
    "2 axes",
    "gate",
    "groups",
    "depthwise",
    "pointwise",
    "strided",
    "dilated",
    "asymmetric",
    "with NaN or Inf",
    "variable weights",
    "static size",
    "x float16",
    "values bfloat16",
    "values float16",
}


def check(seed, cases):
    total = Tally()
    for number in range(cases):
        total.add(check_conv(seed, number))
    return total


def test_condensed_and_dense_convolutions_are_the_float64_sums():
    total = check(SEED, 400)
    assert total.cases == 400
    assert set(total.routes) >= KINDS | {
        f"isa {isa}" for isa in _random_conv_nodes._native.supported_isas()
    }


@pytest.mark.slow
def test_twenty_thousand_random_convolutions():
    assert check(SEED + 1, 20_000).cases == 20_000


def test_a_case_can_be_replayed_from_its_numbers():
    first, second, other = draw_conv(5, 3), draw_conv(5, 3), draw_conv(5, 4)
    assert first.layer.geometry == second.layer.geometry
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.layer.values, second.layer.values)
    assert first.x.shape != other.x.shape or first.layer.geometry != other.layer.geometry


def test_the_reference_gives_the_sums_of_the_dense_weight():
    """Two definitions that share no code: taps of the stored entries, im2col of the weight."""
    for number in range(60):
        case = draw_conv(11, number)
        if not np.isfinite(case.x).all():
            continue
        sums, magnitude = dense_sums(case.layer, case.x)
        np.testing.assert_allclose(case.layer.expected(case.x), sums, rtol=0, atol=1e-12)
        np.testing.assert_allclose(case.layer.magnitude(case.x), magnitude, rtol=0, atol=1e-12)


def plain_case():
    """A float32 case without clip and special values, from which a weight can be dropped."""
    return next(
        (number, case)
        for number, case in ((n, draw_conv(7, n)) for n in range(1000))
        if case.x.dtype == np.float32
        and np.isfinite(case.x).all()
        and case.clip == (-np.inf, np.inf)
        and len(case.layer.rows) >= 2
        and np.prod(case.layer.geometry.output_sizes(case.x.shape[2:])) > 4
    )


def test_a_missing_weight_is_detected(monkeypatch):
    number, case = plain_case()
    values = case.layer.values.copy()
    entry = np.abs(values[1].astype(np.float32)).argmax()
    values[1, entry] = 0
    forgetful = dataclasses.replace(case.layer, values=values)
    run = _random_conv_nodes._run_condensed
    monkeypatch.setattr(
        _random_conv_nodes,
        "_run_condensed",
        lambda its: run(dataclasses.replace(its, layer=forgetful)),
    )
    with pytest.raises(RandomCaseError, match=rf"--seed 7 --group {number}") as e:
        check_conv(7, number)
    assert re.search(r"CondensedConv: \d+ of \d+ outputs are wrong", str(e.value))


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_an_unwritten_or_infinite_output_is_detected(special, monkeypatch):
    number, _ = plain_case()
    run = _random_conv_nodes._run_condensed

    def tampered(case):
        y = run(case)
        y.reshape(-1)[-1] = special
        return y

    monkeypatch.setattr(_random_conv_nodes, "_run_condensed", tampered)
    with pytest.raises(RandomCaseError, match=r"1 of \d+ outputs are wrong"):
        check_conv(7, number)
