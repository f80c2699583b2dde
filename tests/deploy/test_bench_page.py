"""The HTML page: what it holds, and what a browser makes of it."""

import re
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench.report.html import PageError, save_page

from .._waiting import PATIENCE

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium here: apt-get install chromium")

REPORT = """# Layers <b> & more

| case | engine | run | run speed-up |
|---|---|---:|---:|
| 90 % | dense | 1.20 ms [1.10–1.30] |  |
|  | condensed | 95.0 µs [90–99] | 12.63× |
| 80 % | dense | 0.90 ms [0.80–1.00] |  |
|  | condensed | 310 µs [300–320] | 2.90× |

Notes:

- none
"""


@pytest.fixture
def page(tmp_path):
    """A page of one report whose figure is magenta."""
    from matplotlib.image import imsave

    folder = tmp_path / "layer"
    folder.mkdir()
    (folder / "results.md").write_text(REPORT)
    imsave(folder / "results.png", [[(1.0, 0.0, 1.0)] * 300] * 200)
    return save_page([folder], tmp_path / "page.html", "A <title>")


def browse(page, *options, fragment=""):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,700"]
    address = page.as_uri() + fragment
    done = subprocess.run(
        [*command, *options, address], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(dom):
    body = dom[dom.index("<tbody>") : dom.index("</tbody>")]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def test_the_page_holds_everything_itself(page):
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 1
    assert "A &lt;title&gt;" in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<h1>Layers &lt;b&gt; &amp; more</h1>" in text  # what stands in a report is text
    assert rows(text)[1] == ["", "condensed", "95.0 µs [90–99]", "12.63×"]


def test_a_folder_without_a_report_is_refused(tmp_path):
    with pytest.raises(PageError, match="holds no report"):
        save_page([tmp_path], tmp_path / "page.html", "x")
    assert not (tmp_path / "page.html").exists()


def test_the_command_writes_a_page_of_several_folders(page, tmp_path):
    folder = str(page.parent / "layer")
    done = CliRunner().invoke(
        app, ["bench", "page", folder, folder, "-o", str(tmp_path / "two.html")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "two.html").read_text().count("<section>") == 2


@needs_browser
def test_a_browser_sorts_the_table_by_times_with_their_units(page):
    assert [row[1] for row in rows(browse(page, "--dump-dom"))] == ["dense", "condensed"] * 2
    dom = browse(page, "--dump-dom", fragment="#sort=0,2")
    assert [row[2].split(" [")[0] for row in rows(dom)] == [
        "95.0 µs",
        "310 µs",
        "0.90 ms",
        "1.20 ms",
    ]
    # The cases, written once for both of their rows, went along.
    assert [row[0] for row in rows(dom)] == ["90 %", "80 %", "80 %", "90 %"]
    assert 'aria-sort="ascending"' in dom


@needs_browser
def test_a_browser_sorts_downwards_and_leaves_empty_cells_last(page):
    dom = browse(page, "--dump-dom", fragment="#sort=0,3,descending")
    assert [row[3] for row in rows(dom)] == ["12.63×", "2.90×", "", ""]


@needs_browser
def test_a_browser_shows_the_figure(page, tmp_path):
    from matplotlib.image import imread

    browse(page, f"--screenshot={tmp_path / 'shot.png'}")
    picture = imread(tmp_path / "shot.png")
    magenta = (picture[..., :3] == (1, 0, 1)).all(axis=-1).sum()
    assert magenta == 300 * 200


def test_a_figure_of_two_widths_is_embedded_once_with_its_text(tmp_path):
    folder = tmp_path / "layer"
    folder.mkdir()
    shown = '<picture><source media="(max-width: 600px)" srcset="results-narrow.svg">\n'
    shown += '<img src="results.svg" alt="Speed &amp; more"></picture>'
    (folder / "results.md").write_text(REPORT.replace("\n\n", f"\n\n{shown}\n\n", 1))
    for name in ("results.svg", "results-narrow.svg"):
        (folder / name).write_text("<svg/>")
    text = save_page([folder], tmp_path / "page.html", "x").read_text()
    assert text.count("data:image/svg+xml;base64,PHN2Zy8+") == 2
    assert text.count('alt="Speed &amp; more"') == text.count("<picture>") == 1
    assert 'media="(max-width: 600px)" srcset="data:' in text
    assert "results.svg" not in text
