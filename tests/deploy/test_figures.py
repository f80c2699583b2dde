"""How figures of reports are drawn: bars without gaps, and what a reader who cannot see is told."""

import pytest
from matplotlib.figure import Figure as Canvas

from fanin.deploy.bench.report.figure import Axis, Figure, Panel, Series, describe
from fanin.deploy.bench.report.svg import draw_groups


def test_an_engine_that_is_absent_leaves_no_gap_between_bars():
    series = [
        Series("a", "bars", [0, 1], [1.0, 2.0]),
        Series("b", "bars", [0], [1.5]),
        Series("c", "bars", [0, 1], [3.0, 2.5]),
    ]
    axes = Canvas().add_subplot()
    draw_groups(axes, [(one, "#000000") for one in series], flat=False)
    edges = sorted(
        (bar.get_x(), bar.get_x() + bar.get_width()) for group in axes.containers for bar in group
    )
    second = [(left, right) for left, right in edges if left > 0.5]
    assert len(second) == 2
    (_, end), (start, _) = second
    assert start - end < 0.05
    assert sum(map(sum, second)) / 4 == pytest.approx(1)  # centered


def test_the_alternative_text_has_the_ranges_of_each_panel():
    y = Axis("speed-up over dense", unit="×")
    panels = [
        Panel([Series("run", "spans", [0, 1], [4.071, 35.0])], y=y, title="batch 1"),
        Panel([Series("run", "spans", [0], [2.0]), Series("op", "spans", [], [])], y=y),
    ]
    assert describe(Figure("Layer\nsome CPU", panels)) == (
        "Layer: speed-up over dense. batch 1: run 4.07× to 35×. run 2×."
    )
    assert describe(Figure("", [Panel([])])) == "No values."
