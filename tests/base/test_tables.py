"""Tables of reports: in full for pipes, fewer columns for narrow terminals, escaped in HTML."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fanin._base.tables import Column, Sheet

SHEET = Sheet(
    "Layers of <model> [bold]",
    (
        Column("layer", words=True),
        Column("shape", right=True, drop=1),
        Column("bytes", right=True, drop=0),
        Column("form", words=True),
    ),
    (
        ("/encoder/layer.0/attention/query/MatMul", "768×3072", "1.43 MB", "condensed: at 1 row"),
        ("語", "2×3", "24 B", "dense: [red]<b>small</b> & simple enough to be left as it is"),
    ),
    ("note <1>",),
)


def shown(width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(SHEET.to_rich(width))
    return console.file.getvalue()


def test_text_holds_every_cell_in_full_and_aligned():
    title, _, head, rule, first, second, _, note = SHEET.to_text().split("\n")
    assert (title, note) == ("Layers of <model> [bold]", "note <1>")
    assert set(rule) == {"-"}
    assert first.endswith("condensed: at 1 row")
    assert second.endswith("[red]<b>small</b> & simple enough to be left as it is")
    assert head.index("form") == first.index("condensed")
    # A sign of two columns counts as two.
    assert second.index("dense:") == head.index("form") - 1
    assert first[head.index("bytes") + 5 - 7 :].startswith("1.43 MB")


def test_a_wide_terminal_shows_all_columns_and_no_markup_is_read():
    text = shown(150)
    assert all(piece in text for piece in ("768×3072", "1.43 MB", "[red]<b>", "[bold]"))
    assert "wider" not in text


def test_a_narrow_terminal_drops_columns_in_their_order_and_names_them():
    assert "1.43 MB" not in shown(73)
    assert "768×3072" in shown(73)
    assert "a wider terminal also shows bytes" in shown(73)
    text = shown(66)
    assert "768×3072" not in text
    assert "a wider terminal also shows shape, bytes" in text
    assert "/encoder/layer.0/attention/query/MatMul" in text  # no word is broken
    assert max(map(len, text.splitlines())) <= 66


@pytest.mark.parametrize("width", range(66, 150, 3))
def test_no_word_is_cut_at_any_width(width: int):
    text = shown(width)
    dropped = text.partition("also shows")[2]
    for at, column in enumerate(SHEET.columns):
        if column.header not in dropped:
            cells = [row[at] for row in SHEET.rows]
            assert all(word in text.split() for cell in cells for word in cell.split())


def test_html_is_escaped():
    page = SHEET.to_html()
    assert "<caption>Layers of &lt;model&gt; [bold]</caption>" in page
    assert "[red]&lt;b&gt;small&lt;/b&gt; &amp; simple" in page
    assert "note &lt;1&gt;" in page
    assert page.count("<tr>") == 3


def test_signs_that_change_what_a_reader_sees_are_codes():
    sheet = Sheet("a\x1b[2Jb", (Column("layer"),), (("evil\n\u202egnp",),), ("c\rd",))
    escaped = ("a\\x1b[2Jb", "evil\\n\\u202egnp", "c\\rd")
    console = Console(width=80, file=io.StringIO())
    console.print(sheet.to_rich(80))
    for text in (sheet.to_text(), sheet.to_html(), console.file.getvalue()):
        assert all(piece in text for piece in escaped)
        assert not any(sign in text for sign in "\x1b\r\u202e")


SPEEDS = Sheet(
    "Layer",
    (
        Column("case", words=True),
        Column("run", right=True, drop=1),
        Column("op", right=True, drop=0),
        Column("run speed-up", right=True),
    ),
    (
        ("80 % sparse",),
        ("batch 1", "435 µs [422–486]", "430 µs", "4.07× (4.02–4.12) [3.85–4.61]"),
        ("batch 256", "108 µs [105–117]", "102 µs", "10.35× (2.29–2.84) [2.29–2.99]"),
    ),
)


def shown_speeds(width: int) -> tuple[str, list[list[str]]]:
    console = Console(width=width, file=io.StringIO())
    console.print(SPEEDS.to_rich(width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text, [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("width", "row", "also"),
    [
        (90, "batch 1 435 µs [422–486] 430 µs 4.07× (4.02–4.12) [3.85–4.61]", None),
        (60, "batch 1 435 µs 430 µs 4.07× (4.02–4.12)", "ranges in brackets"),
        (
            42,
            "batch 1 435 µs 430 µs 4.07×",
            "ranges in brackets, intervals in parentheses",
        ),
        (36, "batch 1 435 µs 4.07×", "ranges in brackets, intervals in parentheses, op"),
    ],
)
def test_numbers_lose_their_ranges_before_columns_go_and_are_never_broken(width, row, also):
    text, lines = shown_speeds(width)
    assert row.split() in lines
    assert ["80", "%", "sparse"] in lines  # a heading of the rows below
    assert ("also shows " in text) == (also is not None)
    if also:
        assert f"also shows {also}" in " ".join(text.split())


def test_a_heading_stands_in_its_own_line_of_text_and_html():
    assert SPEEDS.to_text().splitlines()[4] == "80 % sparse"
    assert '<tr><td style="text-align:left">80 % sparse</td></tr>' in SPEEDS.to_html()


def test_long_names_are_broken_behind_separators_where_nothing_else_helps():
    name = "/encoder/layer.0/attention/query/MatMul"
    sheet = Sheet("", (Column("layer", words=True), Column("bytes", right=True)), ((name, "9 MB"),))
    console = Console(width=34, file=io.StringIO())
    console.print(sheet.to_rich(34))
    lines = [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]
    assert lines[0].split() == ["layer", "bytes"]
    assert [line.split() for line in lines[2:]] == [
        ["/encoder/layer.0/", "9", "MB"],
        ["attention/query/MatMul"],
    ]
