"""Spreads, ratios and the cases in which no ratio may be given."""

import numpy as np
import pytest

from fanin.deploy.bench.measure.statistics import RoundTimes, Spread, compare

US = 1e-6


def micro(*values):
    return [value * US for value in values]


def versus(dense, ours, null):
    return compare(RoundTimes("dense", dense, null), RoundTimes("ours", ours, null))


def test_spread_has_median_quartiles_and_range():
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(3, 2, 4, 1, 5, 5, (1, 5))
    assert Spread.of([1, 2]) == Spread(1.5, 1.25, 1.75, 1, 2, 2, (1, 2))
    assert Spread.of([7.0]).iqr == 0


def test_the_bootstrap_interval_holds_the_median_of_as_many_draws_as_it_should():
    # 95 of 100 intervals of 25 normal draws should cover the true median; binomial bounds.
    draws = np.random.default_rng(5).standard_normal((400, 25))
    intervals = [Spread.of(row).interval for row in draws]
    covered = sum(low <= 0 <= high for low, high in intervals)
    assert 0.91 * 400 <= covered <= 0.99 * 400
    assert Spread.of(draws[0]) == Spread.of(draws[0])
    wide, narrow = (
        np.subtract(*Spread.of(row).interval[::-1]) for row in (draws[0], draws.ravel())
    )
    assert narrow < wide / 3


def test_conditions_have_ratios_of_their_own_rounds():
    slow = RoundTimes("a", micro(10), None, {"cold": micro(30, 40), "paced": micro(8)})
    fast = RoundTimes("b", micro(5), None, {"cold": micro(10, 20)})
    compared = compare(slow, fast)
    assert set(compared.conditions) == {"cold"}
    assert compared.conditions["cold"].median == pytest.approx(2.5)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_ratios_are_taken_within_a_round():
    # The machine slows down to a third in the last round: the ratio does not move.
    result = versus(micro(100, 110, 300), micro(20, 22, 60), None)
    assert (result.run_ratio.min, result.run_ratio.median, result.run_ratio.max) == pytest.approx(
        (5, 5, 5)
    )
    assert result.op_ratio is None
    assert "no null session" in result.op_note


def test_op_ratios_leave_the_null_session_of_their_round_out():
    result = versus(micro(105, 106), micro(25, 26), micro(5, 6))
    assert (result.op_ratio.min, result.op_ratio.max) == pytest.approx((5, 5))
    assert result.run_ratio.median == pytest.approx((105 / 25 + 106 / 26) / 2)
    assert result.op_note is None


def test_an_op_no_longer_than_the_null_session_gets_no_ratio():
    result = versus(micro(105, 105, 105), micro(7, 7, 4.9), micro(5, 5, 5))
    assert result.op_ratio is None
    assert "ours took no longer than the null session in 1 of 3 rounds" in result.op_note
    assert result.run_ratio.median == pytest.approx(15)


def test_an_op_within_the_noise_of_the_null_session_gets_no_ratio():
    null = micro(5, 6, 7, 8, 9)
    ours = micro(6, 7, 8, 9, 10)
    result = versus(micro(105, 106, 107, 108, 109), ours, null)
    assert result.op_ratio is None
    assert "1.00 µs, is within the null session's noise (quartiles 2.00 µs apart)" in result.op_note


def test_a_baseline_in_the_noise_counts_too():
    result = versus(micro(5, 5), micro(9, 9), micro(5, 5))
    assert "dense took no longer" in result.op_note


def test_each_side_is_relieved_of_its_own_null_call():
    slow, fast = (
        RoundTimes("a", micro(110, 120), micro(10, 20)),
        RoundTimes("b", micro(21, 21), micro(1, 1)),
    )
    assert compare(slow, fast).op_ratio.median == pytest.approx(5)
    assert compare(slow, fast._replace(null=None)).op_ratio is None
