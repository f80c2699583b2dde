"""The demo deletes its own earlier runs and nothing else."""

import importlib.util
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


class Stop(Exception):
    pass


def test_other_files_in_the_folder_are_kept(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)

    def stop(*_):
        raise Stop

    monkeypatch.setattr(demo, "train", stop)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path), "--data", "digits"])
    for file in ("precious", "dense/config.toml", "srigl90/precious"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("x")
    with pytest.raises(Stop):
        demo.main()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"precious", "srigl90/precious"}
