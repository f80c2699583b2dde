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
