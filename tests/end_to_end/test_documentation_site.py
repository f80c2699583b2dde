"""The documentation site: its navigation, its build without warnings, and what a browser shows."""

import functools
import http.server
import importlib.util
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WIDTHS, THEMES = (360, 1200), ("light", "dark")


def module(name):
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def documents(*folders):
    return {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for folder in folders
        for path in folder.glob("*.md")
    }


def test_the_start_page_lists_every_page_once_by_task():
    parts = module("markdown_pages").navigation((ROOT / "docs" / "index.md").read_text())
    assert list(parts) == ["Start", "Train", "Export", "Run and serve", "Measure", "Reference"]
    listed = [page for pages in parts.values() for page in pages]
    assert len(listed) == len(set(listed))
    everywhere = documents(ROOT, ROOT / "docs", ROOT / "docs" / "reference")
    assert set(listed) == everywhere - {"docs/index"} | {"docs/results/index"}


def test_links_are_checked_for_pages_anchors_and_form(tmp_path):
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top">fine</a><a href="other.html#there">fine</a>'
        '<a href="https://example.org/a">fine</a><img src="data:image/png;base64,AA=="/>'
        '<a href="other.html#gone">1</a><a href="none.html">2</a>'
        '<img srcset="none.svg 2x"/><a href="htps://example.org">4</a><a href="http://">5</a>'
    )
    (tmp_path / "other.html").write_text('<p id="there"></p>')
    found = list(module("check_links").broken_links(tmp_path))
    assert [line.split("'")[1] for line in found] == [
        "other.html#gone",
        "none.html",
        "none.svg",
        "htps://example.org",
        "http://",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install fanin[docs]")
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-E", "--conf-dir", SITE]
    folders = ["--doctree-dir", folder / "doctrees", ROOT, folder / "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, *folders], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install fanin[docs]"
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.slow
def test_no_link_of_the_site_is_broken(site):
    assert list(module("check_links").broken_links(site)) == []


@pytest.mark.slow
def test_commands_read_as_they_are_typed(site):
    """Options keep their two dashes, also in plain text, and commands have the colors of code."""
    report = (site / "docs" / "results" / "networks" / "results.html").read_text()
    assert "fanin export --policy structured" in report
    page = (site / "docs" / "serving.html").read_text()
    assert 'class="highlight-console' in page
    assert '<span class="go">' not in page
    assert "© 2026, the fanin authors" in " ".join(page.replace("&#169;", "©").split())


@pytest.mark.slow
def test_the_reference_describes_every_public_name(site):
    import fanin.deploy
    import fanin.export
    import fanin.ort_ops
    import fanin.trainer

    for package in (fanin.trainer, fanin.export, fanin.deploy, fanin.ort_ops):
        name = package.__name__
        text = (site / "docs" / "reference" / f"{name.split('.')[1]}.html").read_text()
        missing = [one for one in package.__all__ if f'id="{name}.{one}"' not in text]
        assert not missing, f"{name}: {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", THEMES)
def test_no_page_is_wider_than_its_window_or_reports_an_error(site, address, browser, width, theme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    page = context.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append((page.url, str(error))))
    page.on("console", lambda said: said.type == "error" and faults.append((page.url, said.text)))
    page.goto(address)
    page.wait_for_url(f"{address}/docs/index.html")  # the root leads there
    for path in sorted({*site.rglob("*.html")} - {site / "index.html"}):
        page.goto(f"{address}/{path.relative_to(site).as_posix()}")
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            faults.append((page.url, f"{wide} pixels too wide"))
    context.close()
    assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_a_reader_sees_the_picture_of_the_theme_and_can_switch(address, browser, theme):
    context = browser.new_context(color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}/docs/index.html")

    def shown():
        images = page.locator("article img")
        return [image.get_attribute("src") for image in images.all() if image.is_visible()]

    (first,) = shown()
    assert first.endswith(f"pipeline-{theme}.svg")
    page.evaluate(f"document.body.dataset.theme = '{'dark' if theme == 'light' else 'light'}'")
    (second,) = shown()
    assert second != first
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("chosen", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_figure_fits_the_window_and_follows_the_chosen_theme(
    address, browser, width, chosen, tmp_path
):
    from matplotlib.image import imread

    other = "dark" if chosen == "light" else "light"
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=other)
    page = context.new_page()
    page.goto(f"{address}/docs/results/networks/results.html")
    page.evaluate(f"document.body.dataset.theme = '{chosen}'")
    (figure,) = [one for one in page.locator("article img").all() if one.is_visible()]
    assert ("-narrow" in figure.get_attribute("src")) == (width == 360)
    box = figure.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    figure.screenshot(path=tmp_path / "figure.png")
    luminance = imread(tmp_path / "figure.png")[..., :3].mean(axis=-1)
    if chosen == "dark":  # light text on the page's dark color
        assert luminance.max() > 0.8
        assert (luminance < 0.2).mean() > 0.5
    else:
        assert luminance.min() < 0.3
        assert (luminance > 0.9).mean() > 0.5
    context.close()


@pytest.mark.slow
def test_search_finds_pages_and_names(address, browser):
    page = browser.new_page()
    for words, expected in (
        ("Prometheus", "docs/serving.html"),
        ("Sparsifier", "docs/reference/trainer.html"),
    ):
        page.goto(f"{address}/search.html?q={words}")
        page.wait_for_selector("ul.search li a")
        found = [link.get_attribute("href") for link in page.locator("ul.search li a").all()]
        assert any(expected in link for link in found), (words, found)
    page.close()


@pytest.mark.slow
def test_tables_scroll_and_keep_their_first_column(address, browser):
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.goto(f"{address}/docs/results/layer-3072x768/results.html")
    table = page.locator(".table-wrapper").first
    cell = table.locator("tbody tr td").first
    left = cell.bounding_box()["x"]
    last = table.locator("tbody tr").first.locator("td").last
    assert last.bounding_box()["x"] > 360
    table.evaluate("table => { table.scrollLeft = table.scrollWidth }")
    assert last.bounding_box()["x"] < 360
    assert cell.bounding_box()["x"] == pytest.approx(left, abs=2)
    page.close()
