"""The tool that measures a sparsifier's cost."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "measure_sparsifier.py"


def test_a_dry_run_measures_dense_and_sparse_steps_in_pairs(tmp_path):
    out = tmp_path / "cost.json"
    command = [sys.executable, TOOL, "--dry-run", "--threads", "1", "--out", out]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "ResNet-18 of width 8, batch 8, 1 threads:" in shown
    step = json.loads(out.read_text())["step"]
    assert (step["model"], step["width"], step["batch"]) == ("resnet18", 8, 8)
    counts = {step[name]["count"] for name in step if "images/s" in name or "by dense" in name}
    assert counts == {3}
    assert step["dense images/s"]["median"] > 0
    assert len(json.loads(out.read_text())["update"]["wall and cpu seconds"]) == 2
