"""The numbers in README.md are those of the result files."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "readme_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """A README with one block, and results of three cases, one of them in the noise."""
    cases = [
        {
            "batch": batch,
            "sparsity": sparsity,
            "comparisons": [{"engine": "condensed", "op_ratio": ratio and {"median": ratio}}],
        }
        for batch, sparsity, ratio in ((1, 0.8, 4.26), (1, 0.99, None), (64, 0.8, 2.04))
    ]
    folder = tmp_path / "docs" / "results" / "layer-3072x768"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"cases": cases}))
    text = "before\n<!-- numbers: layer -->\nold\n<!-- /numbers -->\nafter\n"
    (tmp_path / "README.md").write_text(text)
    return tmp_path


def test_the_readme_of_this_tree_has_the_numbers_of_its_results(tool):
    assert "<!-- numbers: layer -->" in (ROOT / "README.md").read_text()
    assert tool.main(["--check"]) == 0


def test_stale_numbers_are_found_and_written_anew(tool, tree, capsys):
    assert tool.main(["--check"], tree) == 1
    assert "other numbers" in capsys.readouterr().err
    assert "old" in (tree / "README.md").read_text()
    assert tool.main([], tree) == 0
    assert (tree / "README.md").read_text().splitlines() == [
        "before",
        "<!-- numbers: layer -->",
        "| batch | 80 % sparse | 99 % sparse |",
        "|---:|---:|---:|",
        "| 1 | 4.3× | – |",
        "| 64 | 2.0× | – |",
        "<!-- /numbers -->",
        "after",
    ]
    assert tool.main(["--check"], tree) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- numbers: luck -->\n<!-- /numbers -->\n", "no numbers are called 'luck'"),
        ("<!-- numbers: layer -->\n", "1 blocks begin and 0 end"),
        ("<!-- numbers: networks -->\n<!-- /numbers -->\n", "no results.json in networks"),
    ],
)
def test_a_block_that_cannot_be_filled_is_an_error(tool, tree, text, message):
    with pytest.raises(tool.NumbersError, match=message):
        tool.filled(text, tree / "docs" / "results")


def test_networks_come_from_the_zoos_results(tool, tree):
    folder = tree / "docs" / "results" / "networks"
    (folder / "mlp").mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"parts": {"mlp": "mlp/results.json"}}))
    ratios = [("condensed", 5.61), ("openvino", 0.72)]
    comparisons = [{"engine": name, "run_ratio": {"median": ratio}} for name, ratio in ratios]
    data = {"title": "MLP, 90 %", "cases": [{"comparisons": comparisons}]}
    (folder / "mlp" / "results.json").write_text(json.dumps(data))
    assert tool.networks(folder.parent)[2:] == ["| MLP, 90 % | 5.6× | – | 0.7× |"]
