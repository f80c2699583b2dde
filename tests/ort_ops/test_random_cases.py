"""Random cases of the op and its kernels; tools/random_cases.py runs more of them."""

import dataclasses

import numpy as np
import pytest

from . import _random_cases
from ._random_cases import CASES_PER_GROUP, check_group, draw_group
from ._random_tally import RandomCaseError, Tally

SEED = 1


def check(seed, cases):
    total = Tally()
    for number in range(cases // CASES_PER_GROUP):
        total.add(check_group(seed, number))
    return total


def test_every_kernel_agrees_with_the_reference_on_random_cases():
    total = check(SEED, 800)
    assert total.cases == 800
    assert total.with_special > 100
    rows = _random_cases._native.kernel_table()
    kernels = {row.name for row in rows if row.supported and row.compute == "float32"}
    assert kernels <= {route.removeprefix("kernel ") for route in total.routes}
    assert sum(count for route, count in total.routes.items() if "session" in route) >= 5


@pytest.mark.slow
def test_a_hundred_thousand_random_cases():
    assert check(SEED + 1, 100_000).cases == 100_000


def test_groups_can_be_replayed_from_their_numbers():
    first, second, other = draw_group(5, 3), draw_group(5, 3), draw_group(5, 4)
    assert first.cases == second.cases != other.cases
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.layer.values, second.layer.values)


def find(seed, wanted):
    """A group with finite x and weights, and one of its cases for which `wanted` is true."""
    for number in range(1000):
        group = draw_group(seed, number)
        if np.isfinite(group.sums).all() and group.x.dtype == np.float32:
            for case in group.cases:
                plain = not case.with_residual and case.clip == (-np.inf, np.inf)
                if plain and wanted(group, case):
                    return number, group, case
    raise AssertionError("no such case")


def tampered(monkeypatch, number, case, tamper):
    """The error of check_group after the result of one case was tampered with."""
    run = _random_cases._run

    def wrong(its_group, its_case):
        y = run(its_group, its_case)
        return tamper(y) if its_case == case else y

    monkeypatch.setattr(_random_cases, "_run", wrong)
    with pytest.raises(RandomCaseError) as error:
        check_group(7, number)
    assert f"--seed 7 --group {number}" in str(error.value)
    return str(error.value)


def test_a_missing_weight_is_detected(monkeypatch):
    def wanted(group, _case):
        return group.layer.values.shape[1] >= 5 and len(group.layer.rows) >= 2

    number, group, case = find(7, wanted)
    entry = np.abs(group.layer.values[1].astype(np.float32)).argmax()
    forgotten = group.layer.values[1, entry] * group.x[case.start, group.layer.indices[1, entry]]

    def tamper(y):
        y[0, group.layer.rows[1]] -= forgotten
        return y

    assert "outputs are wrong" in tampered(monkeypatch, number, case, tamper)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_an_unwritten_or_infinite_output_is_detected(special, monkeypatch):
    number, _, case = find(7, lambda *_: True)

    def tamper(y):
        y[-1, -1] = special
        return y

    assert "1 of" in tampered(monkeypatch, number, case, tamper)


def test_an_infinity_that_becomes_finite_is_detected(monkeypatch):
    number, case = next(
        (number, case)
        for number, group in ((n, draw_group(7, n)) for n in range(1000))
        for case in group.cases
        if np.isinf(group.sums[case.start]).any()
        and case.clip == (-np.inf, np.inf)
        and not case.with_residual
    )

    def tamper(y):
        y[0, np.isinf(y[0]).argmax()] = 1.0
        return y

    assert "outputs are wrong" in tampered(monkeypatch, number, case, tamper)


def test_a_write_outside_the_output_is_detected(monkeypatch):
    number, _, case = find(7, lambda *_: True)
    runner = _random_cases._runner

    def overrunning(layer, its_case):
        runs = runner(layer, its_case)

        def run(x, residual, out):
            runs(x, residual, out)
            out.base[-1] = 0.0

        return run if dataclasses.astuple(its_case) == dataclasses.astuple(case) else runs

    monkeypatch.setattr(_random_cases, "_runner", overrunning)
    with pytest.raises(RandomCaseError, match="outside the output"):
        check_group(7, number)
