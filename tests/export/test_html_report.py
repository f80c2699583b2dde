"""The page about a model: what it says, and that it is whole, harmless and small."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import CondensedWeight, convert, inspect
from fanin.export.cost_model import CostModel
from fanin.export.forms import Chooser
from fanin.export.html_report import (
    Asked,
    DenseFile,
    Measured,
    describe_export,
    describe_file,
)
from fanin.export.html_report.facts import Layer, Page
from fanin.export.html_report.page import render
from fanin.export.html_report.text import escape, unit_of_bytes, unit_of_seconds
from fanin.export.html_report.times import find_products, measured_seconds
from fanin.export.onnx_reading import read_model
from fanin.export.row_groups import split_rows

from ._mask_summaries import constant_fan_in, summary
from ._page import Element, parse
from .onnx_models import sparse, write_model

runner = CliRunner()


WEIGHTS = {
    "first": constant_fan_in((96, 256), 16, ablated=24).T,
    "second": sparse((96, 200), 0.9),
    "head": sparse((200, 10), 0.0),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    nodes, x = [], "x"
    for place, name in enumerate(WEIGHTS):
        y = "y" if place == 2 else f"y{place}"
        nodes.append(helper.make_node("MatMul", [x, name], [y], name=f"/{name}/MatMul"))
        x = y
    path = tmp_path_factory.mktemp("page") / "in.onnx"
    return write_model(path, nodes, WEIGHTS, x=("batch", 256), y=("batch", 10))


@pytest.fixture(scope="module")
def exported(source: Path) -> Element:
    target = source.with_name("out.onnx")
    report = convert(source, target, policy="condensed", fold=False, batch=64)
    asked = Asked(policy="condensed", batch=64)
    return parse(render(describe_export(report, source, asked)))


def test_table_has_what_each_layer_was_and_is(exported: Element):
    costs, rows = CostModel.of_this_machine(), exported.table("All layers, before and after")
    condensed = {
        name: CondensedWeight.from_dense(np.ascontiguousarray(weight.T))
        for name, weight in WEIGHTS.items()
    }
    seconds = {
        name: (
            costs.dense(64, *weight.T.shape),
            costs.condensed(64, *weight.T.shape, condensed[name].values.size),
        )
        for name, weight in WEIGHTS.items()
    }
    seconds["head"] = (seconds["head"][0],) * 2
    clock = unit_of_seconds(time for pair in seconds.values() for time in pair)
    for row, (name, weight) in zip(rows, WEIGHTS.items(), strict=True):
        stored, counts = condensed[name], np.count_nonzero(weight, axis=0)
        dense, after = seconds[name]
        sizes = (4 * weight.size + 4 * weight.shape[1], stored.nbytes)
        if name == "head":
            sizes = (4 * weight.size,) * 2
        alive = counts[counts > 0]
        spread = (
            str(alive.min()) if alive.min() == alive.max() else f"{alive.min()} – {alive.max()}"
        )
        padding = f"{100 * stored.padding / stored.values.size:.1f}%"
        assert row == [
            name,
            "dense" if name == "head" else "condensed",
            "–" if name == "head" else f"{dense / after:.2f}×",
            clock.number(dense),
            clock.number(after),
            *(f"{size / 1000:.2f}" for size in sizes),
            f"{100 * (1 - np.count_nonzero(weight) / weight.size):.1f}%",
            f"{weight.shape[1]}×{weight.shape[0]}",
            f"{len(alive)} / {weight.shape[1]}",
            spread,
            "–" if name == "head" else padding,
        ]


def test_what_stays_dense_has_its_reason(exported: Element):
    rows = exported.table("Layers that stay dense, and why")
    assert rows == [["head", "0.0%", "10×200", "MatMul", "sparsity 0.0%, under 50%"]]


def test_shares_of_the_time_are_those_of_the_layers(exported: Element):
    (chart,) = exported.all("ol", class_="bars")
    costs = CostModel.of_this_machine()
    dense = {name: costs.dense(64, *weight.T.shape) for name, weight in WEIGHTS.items()}
    shown = {
        item.all("p")[0].text.split()[0]: item.all("div", class_="bar dense")[0]
        for item in chart.all("li")
    }
    assert shown.keys() == WEIGHTS.keys()
    for name, bar in shown.items():
        share = f"{100 * dense[name] / sum(dense.values()):.0f}%"
        assert bar.all("span", class_="share")[0].text == share
        assert bar.all("i")[0].attributes["style"] == (
            f"width:{100 * dense[name] / max(dense.values()):.2f}%"
        )


def test_summary_and_tiles_say_what_was_asked_for(exported: Element, source: Path):
    text = " ".join(exported.text.split())
    assert CostModel.of_this_machine().machine in text
    (facts,) = exported.all("dl", class_="facts")
    terms = [one.text for one in facts.all("dt")]
    found = dict(zip(terms, (one.text for one in facts.all("dd")), strict=True))
    assert found["Policy"] == "condensed"
    assert (found["Batch"], found["Device"]) == ("64", "cpu, 1 thread")
    assert found["Source"] == str(source)
    assert f"onnx {onnx.__version__}" in found["Versions"]
    (tiles,) = exported.all("dl", class_="tiles")
    assert "2 of 3" in tiles.text


def test_pictures_say_what_they_show(exported: Element):
    maps = exported.all("img")
    assert [one.attributes["alt"] for one in maps] == [
        "Heat map of a mask of 96×256 weights: 0.0% to "
        f"{100 * summary(WEIGHTS['first'].T != 0).density.max():.1f}% of the weights of a block "
        "are stored; 24 of 96 neurons are ablated",
        "Heat map of a mask of 200×96 weights: 0.0% to 100.0% of the weights of a block are stored",
    ]
    assert "24 of 96 neurons are ablated." in exported.text


def test_page_loads_nothing(exported: Element):
    elements = list(exported.walk())
    assert not [one for one in elements if one.tag in ("script", "link", "iframe", "object")]
    urls = [one.attributes[key] for one in elements for key in one.attributes if key in _URLS]
    assert urls
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    (policy,) = exported.all("meta", http_equiv="Content-Security-Policy")
    assert policy.attributes["content"].startswith("default-src 'none'")
    (style,) = exported.all("style")
    assert not re.search(r"url\(|@import|https?:", style.text)


_URLS = ("src", "href", "srcset", "action", "data", "xlink:href", "background")


def test_tables_are_semantic(exported: Element):
    for table in exported.all("table"):
        assert table.all("caption")
        assert all(cell.attributes.get("scope") for cell in table.all("th"))
        for row in table.all("tbody")[0].all("tr"):
            assert row.children[0].tag == "th"


HOSTILE = "</title><script>alert('x')</script>\"'&amp;\u202e\x07\n" + "long" * 100


def test_names_and_reasons_of_a_file_are_harmless():
    layer = Layer(
        HOSTILE, HOSTILE, (8, 8), 0.5, 8, "dense", HOSTILE, None, 288, 288, 1e-6, 1e-6,
        mask=summary(np.eye(8, dtype=bool)),
    )  # fmt: skip
    page = Page(
        HOSTILE, HOSTILE, HOSTILE, HOSTILE, (layer,), None, None, (HOSTILE,), (HOSTILE,),
        (HOSTILE,), ((HOSTILE, HOSTILE),), HOSTILE, HOSTILE,
    )  # fmt: skip
    text = render(page)
    tree = parse(text)
    assert not tree.all("script")
    assert not {"\u202e", "\x07"} & set(text)
    shown = "</title><script>alert('x')</script>\"'&amp;\\u202e\\x07\\nlong"
    (row,) = tree.table("All layers, before and after")
    assert row[0].startswith(shown)
    assert row[0].endswith("longlong")
    assert len(row[0]) < 200
    assert tree.all("title")[0].text.startswith(shown)


def test_a_hostile_file_gives_a_page(tmp_path: Path):
    name = '<q onload="x">&\'\x1b[31m'
    node = helper.make_node("MatMul", ["x", name], ["y"], name=name)
    path = write_model(tmp_path / "<i>.onnx", [node], {name: sparse((48, 32))})
    tree = parse(render(describe_file(path, Asked())))
    assert tree.all("h1")[0].text == "<i>.onnx"
    assert not tree.all("q")
    assert tree.table("All layers, before and after")[0][0] == '<q onload="x">&\'\\x1b[31m'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\ud800", "\\ud800"),
        ("a\u2028b", "a\\u2028b"),
        ("é✓", "é✓"),
        ("<&>\"'", "&lt;&amp;&gt;&quot;&#x27;"),
    ],
)
def test_texts_are_escaped(text: str, shown: str):
    assert escape(text) == shown


def test_page_of_a_large_model_has_a_few_megabytes():
    rng = np.random.default_rng(0)
    mask = summary(rng.random((960, 1280)) < 0.1)
    layers = tuple(
        Layer(
            f"blocks.{i}.mlp.up_projection.weight", "MatMul", (960, 1280), 0.9, 960, "condensed",
            "4.3× predicted at 1 row", 0.1, 4915200, 737280, 1e-4, 2e-5, mask=mask,
        )
        for i in range(400)
    )  # fmt: skip
    page = Page("big.onnx", "", "", "planned", layers, None, None, (), (), (), (), "", "")
    text = render(page)
    assert len(text) < 3e6
    assert len(parse(text).all("img")) == 400


def test_groups_of_rows_have_one_dense_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weight = constant_fan_in((96, 512), 20)
    weight[:8] = sparse((8, 512), 0.2)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    source = write_model(
        tmp_path / "in.onnx", [node], {"w": weight.T}, x=("batch", 512), y=("batch", 96)
    )
    monkeypatch.setattr(Chooser, "groups", lambda _, weight, *__: split_rows(weight, 2))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    chooser = Asked().chooser()
    products = find_products(read_model(tmp_path / "out.onnx"), chooser)
    assert [product.label for product in products] == list(report.layers[0].nodes)
    dense = chooser.costs.dense(1, 96, 512)
    assert [product.dense_seconds for product in products] == [pytest.approx(dense), 0]
    stored = [product.stored for product in products]
    seconds = sum(chooser.costs.condensed(1, 96, 512, count) for count in stored)
    (layer,) = describe_export(report, source, Asked()).layers
    assert (layer.seconds_dense, layer.seconds) == pytest.approx((dense, seconds))
    assert layer.padding == pytest.approx(report.layers[0].padding / sum(stored))


def test_inspection_of_a_condensed_file_has_its_dense_layers_too(source: Path, tmp_path: Path):
    convert(source, tmp_path / "out.onnx", policy="condensed", fold=False)
    page = describe_file(tmp_path / "out.onnx", Asked())
    assert (page.kind, page.after) == ("Inspection", "in the file")
    assert [(x.name, x.form) for x in page.layers] == [
        ("/first/MatMul", "condensed"),
        ("/second/MatMul", "condensed"),
        ("head", "dense"),
    ]
    assert all(x.seconds is not None for x in page.layers)


def test_dense_layers_are_timed_under_the_names_that_the_passes_give_them(tmp_path: Path):
    weights = {"first": WEIGHTS["first"], "second": sparse((96, 512), 0.0)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"], name="a"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "second"], ["y"], name="b"),
    ]
    source = write_model(tmp_path / "in.onnx", nodes, weights, x=("n", 256), y=("n", 512))
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert report.folded
    first, second = describe_export(report, source, Asked(policy="condensed")).layers
    costs = CostModel.of_this_machine()
    assert first.seconds_dense == pytest.approx(costs.dense(1, 72, 256))
    assert second.seconds == pytest.approx(costs.dense(1, 512, 72))


@pytest.mark.parametrize("name", ["conv", "fused conv", "r_nchwc", "h_nchwc", "conv/Fusion/"])
def test_a_layer_is_found_under_every_name_that_the_runtime_gives_it(tmp_path: Path, name: str):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="conv2"),
    ]
    weights = {"w": sparse((4, 3, 3, 3)), "w2": sparse((4, 4, 1, 1))}
    path = write_model(tmp_path / "m.onnx", nodes, weights, x=(1, 3, 8, 8), y=(1, 4, 6, 6))
    products = find_products(read_model(path), Asked().chooser())
    measured = Measured({name: 1.0, "conv2": 2.0, "else": 3.0}, 7.0)
    assert [measured_seconds(product, measured) for product in products] == [1.0, 2.0]
    assert measured_seconds(products[0], Measured({"convolution": 1.0}, 7.0)) is None


def test_measured_times_stand_beside_the_predicted_ones(source: Path, tmp_path: Path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", fold=False)
    names = [f"/{name}/MatMul" for name in WEIGHTS]
    dense = DenseFile(source, Measured(dict(zip(names, (4e-4, 3e-4, 1e-4), strict=True)), 2e-3))
    own = Measured(dict(zip(names, (1e-4, 1e-4, 2e-4), strict=True)), 5e-4)
    page = describe_export(report, source, Asked(), dense=dense, measured=own)
    tree = parse(render(page))
    rows = tree.table("All layers, before and after")
    assert [row[5:7] for row in rows] == [
        ["400.0", "100.0"],
        ["300.0", "100.0"],
        ["100.0", "200.0"],
    ]
    (chart,) = tree.all("ol", class_="bars")
    shares = [one.text for one in chart.all("span", class_="share")]
    assert shares == ["50%", "25%", "38%", "25%", "12%", "50%"]
    assert (
        "measured speed-up4.00×whole runs: 2.000 → 0.500\N{NO-BREAK SPACE}ms"
        in tree.all("dl")[0].text
    )


def test_measured_times_that_miss_a_layer_leave_the_chart_to_predicted_ones(
    source: Path, tmp_path: Path
):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", fold=False)
    own = Measured({"/first/MatMul": 1e-4}, 5e-4)
    page = describe_export(report, source, Asked(), measured=own)
    tree = parse(render(page))
    unit = unit_of_seconds([max(layer.seconds_dense for layer in page.layers)])
    (chart,) = tree.all("ol", class_="bars")
    assert chart.all("span", class_="value")[0].text == unit.text(page.layers[0].seconds_dense)
    assert [row[5:7] for row in tree.table("All layers, before and after")] == [
        ["–", "100.0"], ["–", "–"], ["–", "–"]
    ]  # fmt: skip


def test_measuring_goes_with_a_page(source: Path):
    result = runner.invoke(app, ["inspect", str(source), "--measure"])
    assert result.exit_code == 2
    assert "it goes with --html" in " ".join(result.output.replace("│", " ").split())


def test_a_page_never_replaces_weights_of_the_model(source: Path, tmp_path: Path):
    model, data = tmp_path / "apart.onnx", tmp_path / "apart.data"
    onnx.save(
        onnx.load(source), model, save_as_external_data=True, location=data.name, size_threshold=0
    )
    before = data.read_bytes()
    out = ["-o", str(tmp_path / "out.onnx"), "--report-html", str(data)]
    for arguments in (["inspect", str(model), "--html", str(data)], ["export", str(model), *out]):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 2
        assert "holds weights of" in " ".join(result.output.replace("│", " ").split())
        assert data.read_bytes() == before


def test_plan_predicts_for_the_batch_that_was_asked_for(source: Path):
    page = describe_file(source, Asked(batch=256))
    assert page.kind == "Planned export"
    assert page.layers[2].seconds == pytest.approx(CostModel.of_this_machine().dense(256, 10, 200))


def test_json_has_no_pictures(source: Path, tmp_path: Path):
    report = convert(source, tmp_path / "out.onnx", policy="condensed", verify=False)
    assert report.layers[0].mask is not None
    assert "mask" not in json.loads(report.to_json())["layers"][0]
    assert "mask" not in json.loads(inspect(tmp_path / "out.onnx").to_json())["layers"][0]


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (1500, "1.50 kB"), (2e9, "2.00 GB")])
def test_sizes_have_a_unit(size: int, text: str):
    assert unit_of_bytes([int(size), 1]).text(size).split() == text.split()


def test_export_writes_the_page(source: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    out = tmp_path / "out.onnx"
    options = ["-o", str(out), "--policy", "condensed", "--report-html", str(page)]
    result = runner.invoke(app, ["export", str(source), *options])
    assert result.exit_code == 0, result.output
    assert "Export report" in parse(page.read_text(encoding="utf-8")).text


def test_inspect_writes_the_page(source: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    result = runner.invoke(app, ["inspect", str(source), "--html", str(page), "--batch", "3"])
    assert result.exit_code == 0, result.output
    assert "batch 3" in parse(page.read_text(encoding="utf-8")).text


def test_page_that_cannot_be_written_stops_an_export_before_its_work(source: Path, tmp_path: Path):
    out = tmp_path / "out.onnx"
    missing = tmp_path / "missing" / "page.html"
    result = runner.invoke(
        app, ["export", str(source), "-o", str(out), "--report-html", str(missing)]
    )
    assert result.exit_code == 1
    assert "does not exist; create it first" in result.output
    for model in (source, out, tmp_path / "out.dense.onnx"):
        result = runner.invoke(
            app, ["export", str(source), "-o", str(out), "--report-html", str(model)]
        )
        assert result.exit_code == 2
        assert "name another file" in " ".join(result.output.replace("│", " ").split())
    assert not out.exists()
