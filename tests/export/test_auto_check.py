"""The tool that shows that exports under the policy auto are not slower than dense ones."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tool():
    pytest.importorskip("onnxruntime")
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location(
            "auto_check", ROOT / "tools" / "auto_check.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.pop(0)


def timed(*processes):
    part = {"dense_seconds": 2.0, "auto_seconds": 1.0, "timing": {}}
    return [part | {"ratios": list(ratios)} for ratios in processes]


def test_interval_of_equal_ratios_is_a_point(tool):
    assert tool.bootstrap_interval([[1.25] * 21] * 3) == (1.25, 1.25)


def test_interval_knows_that_processes_differ(tool):
    """Rounds of one process agree; only other processes show how far off it may be."""
    rng = np.random.default_rng(0)
    rounds = rng.normal(1.0, 0.001, (3, 21))
    low, high = tool.bootstrap_interval(rounds + np.array([[-0.02], [0.0], [0.02]]))
    assert low < 0.985
    assert high > 1.015
    low, high = tool.bootstrap_interval(rounds)
    assert 0.998 < low < 1.0 < high < 1.002


@pytest.mark.parametrize(
    ("processes", "passed"),
    [
        (([1.5] * 21, [1.4] * 21), True),
        (([0.97] * 21, [1.01] * 21, [0.98] * 21), True),
        (([0.97] * 21, [0.98] * 21), False),  # never reaches 1
        (([0.9] * 20 + [3.0], [0.93] * 20 + [3.0]), False),  # reaches it in an outlier
    ],
)
def test_passing_takes_a_median_and_an_interval_that_reaches_one(tool, processes, passed):
    assert tool.pooled(timed(*processes))["passed"] is passed


def test_a_model_is_exported_and_its_files_are_timed_in_turn(tool, tmp_path, capsys):
    assert tool.build(tmp_path, ["mlp-tiny", "onnx-mlp"]) == 0
    facts = json.loads((tmp_path / "onnx-mlp.json").read_text())
    assert sum(facts["forms"].values()) == 4
    for name in ("mlp-tiny", "onnx-mlp"):
        for file in (f"{name}.onnx", f"{name}.dense.onnx"):
            onnx.checker.check_model(tmp_path / file)
    capsys.readouterr()
    assert tool.time_model(tmp_path, "mlp-tiny") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["ratios"]) == result["timing"]["rounds"] == 21
    assert min(result["ratios"]) > 0


@pytest.mark.usefixtures("tool")
def test_half_of_the_weights_of_a_filter_are_kept():
    from _auto_models import thin_filters_  # beside the tool
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 6, 3, groups=6))
    before = [layer.weight.detach().clone() for layer in model]
    thin_filters_(model, 0.5)
    kept = (model[1].weight != 0).flatten(1).sum(1)
    assert kept.tolist() == [36] * 6
    assert all((model[place].weight == before[place]).all() for place in (0, 2))
