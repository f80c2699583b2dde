"""The numbers in README.md and docs/precision.md are those of the result files."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load(name):
    """Import a script of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool():
    return load("readme_numbers")


def write_result(folder, ratio):
    """A result of ``fanin bench model`` with this speed-up."""
    folder.mkdir(parents=True)
    comparisons = [
        {"engine": "openvino", "run_ratio": {"median": 0.5}},
        {"engine": "condensed", "run_ratio": {"median": ratio}},
    ]
    (folder / "results.json").write_text(json.dumps({"cases": [{"comparisons": comparisons}]}))


@pytest.fixture
def tree(tmp_path):
    """A README with one block; one network with everything, one without a second thread count."""
    results = tmp_path / "docs" / "results" / "trained"
    for name, accuracy in (
        ("mlp", {"measure": "test accuracy", "dense": 0.8907, "sparse": 0.8832}),
        ("minilm-90", {"measure": "cosine", "dense": 1.0, "sparse": 0.674}),
    ):
        write_result(results / name / "threads-1", 9.96)
        (results / name / "accuracy.json").write_text(json.dumps(accuracy))
    write_result(results / "mlp" / "threads-2", 6.04)
    write_result(results / "mlp" / "threads-16", 1.25)
    text = "before\n<!-- numbers: trained -->\nold\n<!-- /numbers -->\nafter\n"
    (tmp_path / "README.md").write_text(text)
    for page in ("precision", "foreign-models"):
        (tmp_path / "docs" / f"{page}.md").write_text("no numbers\n")
    return tmp_path


def test_the_pages_of_this_tree_have_the_numbers_of_its_results(tool):
    assert "<!-- numbers: trained -->" in (ROOT / "README.md").read_text()
    assert "<!-- numbers: int8-layers -->" in (ROOT / "docs" / "precision.md").read_text()
    assert "<!-- numbers: foreign -->" in (ROOT / "docs" / "foreign-models.md").read_text()
    assert tool.main(["--check"]) == 0


def test_threads_are_compared_at_each_batch(tool, tmp_path):
    def case(batch, threads, condensed, ratio):
        return {
            "batch": batch,
            "facts": {"threads": threads},
            "engines": [{"name": "condensed", "run": {"median": condensed}}],
            "comparisons": [{"engine": "condensed", "run_ratio": {"median": ratio}}],
        }

    result = {
        "cases": [case(1, 1, 30e-6, 12.0), case(1, 4, 10e-6, 9.0), case(1, 2, 16e-6, 10.0)],
        "facts": {
            "planned": [
                {"what": "90 % sparse, batch 1", "threads": threads, "one_thread": 1, "planned": p}
                for threads, p in ((8, 0.5), (16, 0.25))
            ]
        },
    }
    folder = tmp_path / "scaling" / "threads"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(result))
    heading, _, row = tool.threads(tmp_path)
    assert "4 threads over 1" in heading
    assert row == "| 1 | 12.0× | 9.0× | 3.00× | 4.0× |"


def test_layers_in_8_bits_show_each_sparsity_and_each_rival(tool, tmp_path):
    def compared(engine, ratio):
        return {"engine": engine, "run_ratio": {"median": ratio}}

    def case(batch, sparsity, ratio, rivals):
        return {
            "batch": batch,
            "sparsity": sparsity,
            "engines": [{"name": "condensed-int8-static", "rms_error": 0.0149}],
            "comparisons": [
                compared("dense-int8-static", 3.5),
                compared("condensed-int8-static", ratio),
            ],
            "rivals": [
                {"family": family, "comparison": compared("condensed-int8-static", times)}
                for family, times in rivals.items()
            ],
        }

    cases = [
        case(1, 0.8, 7.0, {"DeepSparse int8": 4.5}),
        case(1, 0.9, 12.3, {"DeepSparse int8": 7.7}),
        case(64, 0.9, 33.0, {"DeepSparse int8": 1.1, "OpenVINO int8": 2.0}),
    ]
    folder = tmp_path / "int8" / "layer-3072x768"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"cases": cases}))
    rows = tool.int8_layers(tmp_path)
    assert rows[0] == "| layer | over dense float32 | batch 1 | batch 16 | batch 64 | error |"
    size = "3072\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}768"
    assert rows[2] == f"| {size} | dense int8, static | 3.5× | – | 3.5× | – |"
    own = f"| {size} | sparse int8, static | 7.0× / 12.3× / – | – | – / 33.0× / – | "
    assert rows[6].replace("1.5\N{NO-BREAK SPACE}%", "1.5 %") == f"{own}1.5 % |"
    assert rows[8].endswith("3072 | dense int8, static | – | – | – | – |")  # not measured
    rivals = tool.int8_rivals(tmp_path)
    assert rivals[2] == f"| {size} | DeepSparse int8 | 4.5× / 7.7× / – | – | – / 1.1× / – |"
    assert rivals[3] == f"| {size} | OpenVINO int8 | – | – | – / 2.0× / – |"
    assert len(rivals) == 5


def test_networks_in_8_bits_are_listed_with_dashes_where_results_are_missing(tool, tmp_path):
    folder = tmp_path / "int8" / "networks" / "resnet-50"
    folder.mkdir(parents=True)
    comparisons = [{"engine": "condensed-int8-static", "run_ratio": {"median": 4.04}}]
    (folder / "results.json").write_text(json.dumps({"cases": [{"comparisons": comparisons}]}))
    rows = tool.int8_networks(tmp_path)
    assert rows[2] == "| MLP 784-3072-768-3072-768-10 | – | – | – | – | – |"
    assert rows[5] == "| ResNet-50 | – | – | – | 4.0× | – |"


def test_stale_numbers_are_found_and_replaced(tool, tree, capsys):
    assert tool.main(["--check"], tree) == 1
    assert "differ" in capsys.readouterr().err
    assert "old" in (tree / "README.md").read_text()
    assert tool.main([], tree) == 0
    text = (tree / "README.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert text.splitlines() == [
        "before",
        "<!-- numbers: trained -->",
        "| network, sparsity | accuracy, dense | sparse | speed-up, 1 thread | all CPUs |",
        "|---|---:|---:|---:|---:|",
        "| MLP, 90 % | 89.1 % | 88.3 % | 10.0× | 6.0× (2) 1.2× (16) |",
        "| ResNet-18, 90 % | – | – | – | – |",
        "| MiniLM, 50 % | – | – | – | – |",
        "| MiniLM, 90 % | 1.00 | 0.67 | 10.0× | – |",
        "<!-- /numbers -->",
        "after",
    ]
    assert tool.main(["--check"], tree) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- numbers: luck -->\n<!-- /numbers -->\n", "unknown block 'luck'"),
        ("<!-- numbers: trained -->\n", "1 blocks are opened and 0 closed"),
    ],
)
def test_a_block_that_cannot_be_filled_is_an_error(tool, tree, text, message):
    with pytest.raises(tool.NumbersError, match=message):
        tool.filled(text, tree / "docs" / "results")


def test_every_network_of_the_table_can_be_trained(tool):
    trained = load("trained_networks")
    assert list(tool.NETWORKS) == [*trained.RECIPES, *trained.ARMS]
    recipes = {file.stem for file in (ROOT / "trainer" / "recipes").glob("*.toml")}
    for name in trained.RECIPES.values():
        assert {f"{name}-dense", f"{name}-srigl90"} <= recipes


ROWS = [
    {
        "name": "small",
        "origin": "npm:box@1",
        "status": "converted",
        "pruned": 4,
        "condensed": 2,
        "structured": 0,
        "dense": 2,
        "reasons": {"condensed predicted N as fast at N rows": 1, "LSTM reads it, which is not": 1},
        "error": 2.5e-7,
        "units": 0.0,
        "outputs_vary": True,
        "dense_ms": 1.2345,
        "speedup": 1.5,
        "interval": [1.4, 1.6],
    },
    {
        "name": "slow",
        "origin": "box==2",
        "status": "converted",
        "pruned": 1,
        "condensed": 1,
        "reasons": {},
        "error": 0.0,
        "units": 0.0,
        "outputs_vary": False,
        "dense_ms": 100.4,
        "speedup": 0.97,
        "interval": [0.96, 0.99],
    },
    {"name": "broken", "origin": "box==2", "status": "failed", "pruned": 1, "reason": "no"},
    {"name": "lost", "origin": "gone", "status": "not here", "reason": "no package"},
]


def test_foreign_models_are_tabled_with_what_became_of_them(tool, tmp_path):
    (tmp_path / "foreign-zoo").mkdir()
    (tmp_path / "foreign-zoo" / "models.json").write_text(json.dumps({"rows": ROWS}))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tool.foreign(tmp_path)[2:]]
    left = "1\u00a0too little gain, 1\u00a0LSTM"
    assert rows[0] == ["small", "box@1", "4", "2", left, "2e-07", "1.23", "1.50×"]
    assert rows[1][4:] == ["none", "(0)", "100", "0.97×"]
    assert rows[2][3:] == ["0", "failed", "–", "–", "–"]
    assert rows[3][4] == "not here"
    said = "\n".join(tool.foreign_sum(tmp_path))
    assert "Of 3 files, 2 were converted, 0 have" in said
    assert "and 1 failed" in said
    assert "more than noise: slow (0.97×)." in said
