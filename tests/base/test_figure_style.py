"""What figures of reports and analyses share: colors, widths, places of labels."""

import re

import pytest

from fanin._base.figure_style import (
    COLORS,
    DARK,
    FAINT,
    INK,
    NARROW,
    ROSE,
    SALMON,
    SILVER,
    SKY,
    WIDE,
    figure_style,
    name_lines,
    picture,
    spread_out,
    to_svg,
)


def test_colors_of_figures_are_read_on_white_and_on_dark_pages():
    def luminance(color):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one, other):
        low, high = sorted(map(luminance, (one, other)))
        return (high + 0.05) / (low + 0.05)

    for color in (INK, FAINT, *COLORS):
        assert contrast(color, "#ffffff") >= 4.5
        assert contrast(DARK[color], "#131416") >= 4.5
    for color in (SKY, SALMON, ROSE, SILVER):  # of areas
        assert min(contrast(color, "#ffffff"), contrast(DARK[color], "#131416")) >= 3


def test_labels_are_moved_apart_in_their_order_and_stay_inside():
    assert spread_out([0.1, 0.5, 0.9], 0.2, 0, 1) == [0.1, 0.5, 0.9]
    assert spread_out([0.5, 0.51, 0.49], 0.2, 0, 1) == pytest.approx([0.69, 0.89, 0.49])
    assert spread_out([0.95, 0.97, 1.0], 0.2, 0, 1) == pytest.approx([0.6, 0.8, 1.0])
    # More than there is room for: equally far apart all the same.
    assert spread_out([0, 0, 0], 0.6, 0, 1) == pytest.approx([0, 0.6, 1.2])


def figure_of(width, labels):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width.inches, 3))
    axes = figure.add_subplot()
    for number, label in enumerate(labels):
        axes.plot([0, 1], [0.125, number], label=label)
    return figure, axes


def test_lines_are_named_at_their_ends_where_the_names_have_room():
    pytest.importorskip("matplotlib")
    with figure_style(WIDE):
        _, axes = figure_of(WIDE, ["dense", "condensed"])
        assert name_lines(axes)
        assert [text.get_text() for text in axes.texts] == ["dense", "condensed"]
        assert [text.get_color() for text in axes.texts] == [
            line.get_color() for line in axes.get_lines()
        ]
        # At the heights where the lines end.
        low, high = axes.get_ylim()
        ends = [low + (high - low) * text.xy[1] for text in axes.texts]
        assert ends == pytest.approx([0, 1])
    with figure_style(NARROW):
        _, axes = figure_of(NARROW, ["dense", "condensed, products of bfloat16"])
        assert not name_lines(axes)
        assert not axes.texts


def test_a_figure_is_one_line_of_svg_that_keeps_its_numbers_and_follows_the_theme():
    pytest.importorskip("matplotlib")
    with figure_style(WIDE):
        figure, axes = figure_of(WIDE, ["dense"])
        axes.set_xticks([0.125, 0.875], ["0.125", "a: b; c"])
        content = to_svg(figure, 'less < "more"').decode()
    assert content.count("\n") == 1
    assert '<title>less &lt; "more"</title>' in content
    assert ">0.125<" in content
    assert ">a: b; c<" in content
    assert "<text" in content
    assert "DejaVu" not in content
    colors = set(re.findall(r"(?:fill|stroke):(#[0-9a-f]{6})", content))
    assert COLORS[0] in colors
    assert colors <= {*DARK, *DARK.values()}
    for light in colors & set(DARK):
        assert f'[style*="stroke:{light}"]{{stroke:{DARK[light]}!important}}' in content


def test_a_picture_has_a_narrow_variant_and_escapes_its_text():
    shown = picture("results", 'a "b" <c>')
    assert 'media="(max-width: 600px)" srcset="results-narrow.svg"' in shown
    assert 'src="results.svg" alt="a &quot;b&quot; &lt;c&gt;"' in shown
