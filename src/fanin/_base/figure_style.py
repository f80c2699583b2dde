"""Figures as SVG with text that is text, for wide and narrow pages, light and dark.

matplotlib is loaded only where a figure is drawn.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#1f2328", "#59636e", "#d1d9e0"
BLUE, RED, GREEN, PURPLE = "#0067a5", "#b84700", "#007a58", "#a3437d"
OCHRE, GRAY = "#8a6100", "#6b7280"
SKY, SALMON, ROSE, SILVER = "#4a90c2", "#d9774a", "#c2607f", "#8b949e"
"""Lighter relatives, for areas beside them and not for text."""

COLORS = (BLUE, RED, GREEN, PURPLE, OCHRE, GRAY)
"""Colors of series in their order: hues that people with any color vision tell apart, dark enough
to be read as text on white (contrast above 4.5)."""

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
"""Shapes of points in the order of series, so that color is not all that tells them apart."""

DARK = {
    INK: "#e6edf3",
    FAINT: "#9198a1",
    GRID: "#3d444d",
    BLUE: "#56b4e9",
    RED: "#ff9a52",
    GREEN: "#2fc79a",
    PURPLE: "#e29bc6",
    OCHRE: "#f0b429",
    GRAY: "#a3acb8",
    SKY: "#a6d5f5",
    SALMON: "#ffc59c",
    ROSE: "#ffb3c7",
    SILVER: "#d0d7de",
}
"""What each color is on dark pages; a color that is not here stays."""


@dataclass(frozen=True)
class Width:
    """A width of figures.

    Attributes:
        inches: of the figure; a page shows 96 pixels for each.
        points: size of its text.
        suffix: what its file's name ends in.

    """

    inches: float
    points: float
    suffix: str

    @property
    def narrow(self) -> bool:
        """Whether it is that of a phone."""
        return self is NARROW


WIDE = Width(7.9, 9.5, "")
NARROW = Width(3.5, 8.5, "-narrow")
_SHARE_OF_LABELS = 0.33
"""Most of a figure's width that labels beside its lines may take."""

WIDTHS = (WIDE, NARROW)
"""For pages of 1,200 pixels (with a margin for navigation) and of 360."""

NARROW_PAGE = "(max-width: 600px)"
"""Media query of the pages that show the narrow figure."""


@contextmanager
def figure_style(width: Width) -> Iterator[None]:
    """Draw with our colors and sizes, whatever the user's matplotlibrc says."""
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    size = width.points
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fanin",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # what matplotlib brings: it measures with it
        "font.size": size,
        "axes.titlesize": size,
        "axes.labelsize": size,
        "xtick.labelsize": size - 0.5,
        "ytick.labelsize": size - 0.5,
        "legend.fontsize": size - 0.5,
        "figure.titlesize": size + 1,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "axes.edgecolor": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlecolor": INK,
        "axes.prop_cycle": cycler(color=COLORS),
        "axes.axisbelow": True,
        "grid.color": GRID,
        "legend.frameon": False,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        yield


def to_svg(figure: Figure, text: str) -> bytes:
    """Return a figure of ``figure_style`` as SVG in one line.

    Args:
        figure: the figure, whose background becomes transparent.
        text: alternative text.

    """
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    content = drawn.getvalue()
    content = content[content.index("<svg") :]
    for pattern, shorter in _SHORTER:
        content = pattern.sub(shorter, content)
    content = re.sub(r"<[^>]+>", _shortened, content)
    head, _, rest = content.partition(">")
    label = f"<title>{html.escape(text, quote=False)}</title>"
    return f'{head} role="img">{label}<style>{_dark_style()}</style>{rest.rstrip()}\n'.encode()


_SHORTER = tuple(
    (re.compile(pattern, re.DOTALL), shorter)
    for pattern, shorter in (
        (r"<metadata>.*?</metadata>|<!--.*?-->", ""),
        # The font that was measured is wider than those of readers' systems.
        (r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif"),
        (r' id="[^"]*_\d+"| transform="rotate\(-0 [^"]*"', ""),
        (r"\s+", " "),
        (r"> <", "><"),
    )
)
"""Replacements that halve a file of matplotlib's and do not change what it shows."""


def _shortened(tag: re.Match[str]) -> str:
    """Shorten the attributes of an element; a hundredth of a point is enough for coordinates."""
    rounded = re.sub(r"(\.\d\d)\d+", r"\1", tag[0])
    return rounded.replace(": ", ":").replace("; ", ";")


def _dark_style() -> str:
    """Let colors follow the theme; programs that know no media queries keep the light ones."""
    rules = "".join(
        f'[style*="{what}:{light}"]{{{what}:{dark}!important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


def picture(name: str, text: str) -> str:
    """Return HTML, for Markdown as well, that shows a figure in the width that fits.

    Args:
        name: of the wide file, without ``.svg``.
        text: alternative text.

    """
    return (
        f'<picture><source media="{NARROW_PAGE}" srcset="{name}{NARROW.suffix}.svg">\n'
        f'<img src="{name}.svg" alt="{html.escape(text)}"></picture>'
    )


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart: at least ``gap`` between any two, in their order, within the limits.

    Args:
        places: where each label would be best.
        gap: least distance.
        low: least place.
        high: greatest place, exceeded if there are too many labels.

    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = list(places)
    least = low
    for at in order:
        moved[at] = least = max(places[at], least)
        least += gap
    most = max(high, low + gap * (len(places) - 1))
    for at in reversed(order):
        moved[at] = most = min(moved[at], most)
        most -= gap
    return moved


def name_lines(axes: Axes) -> bool:
    """Write the label of each line at its end, moved apart where ends are close.

    Returns:
        False if the labels have no room there and nothing was written: a key has to explain the
        lines then.

    """
    import matplotlib as mpl

    figure: Any = axes.figure
    handles, labels = axes.get_legend_handles_labels()
    lines: list[Any] = [handle[0] if isinstance(handle, tuple) else handle for handle in handles]
    longest = max(map(len, labels), default=0)
    inches = figure.get_figwidth(), figure.get_figheight() * axes.get_position().height
    points = mpl.rcParams["font.size"]
    gap = 1.25 * points / 72 / inches[1]
    room = _SHARE_OF_LABELS * inches[0] * 72 / (0.6 * points)
    if longest > room or gap * len(lines) > 1:
        return False
    scale = axes.yaxis.get_transform().transform
    bottom, top = scale(list(axes.get_ylim()))
    ends = [(scale([line.get_ydata()[-1]])[0] - bottom) / (top - bottom) for line in lines]
    for line, label, place in zip(lines, labels, spread_out(ends, gap, 0, 1), strict=True):
        axes.annotate(
            label,
            (1, place),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            annotation_clip=False,
        )
    return True
