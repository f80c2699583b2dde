"""Errors that a user can mend end in one readable line."""

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import bench


def test_too_little_memory_is_told_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def measure(*_, **__):
        raise MemoryError("Unable to allocate 3.64 TiB")

    monkeypatch.setattr(bench, "bench_layer", measure)
    result = CliRunner().invoke(app, ["bench", "layer", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == "fanin: out of memory: Unable to allocate 3.64 TiB\n"
