"""The exit statuses that docs/commands.md lists, and what goes to which stream."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fanin.export
from fanin.cli import _stop, app

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"
runner = CliRunner()


def documented() -> set[int]:
    section = DOCUMENT.read_text().split("## Exit status")[1].split("## ")[0]
    return {int(status) for status in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--version"], 0),
        (["inspect", "absent.onnx"], 1),
        (["export", "absent.onnx", "-o", "out.onnx"], 1),
        (["prune", "absent.onnx", "-o", "out.onnx", "--sparsity", "0.9"], 1),
        (["doctor", "absent.onnx"], 1),
        (["inspect"], 2),
        (["inspect", "absent.onnx", "--fast"], 2),
        (["inspect", "absent.onnx", "--dim", "sequence"], 2),
        (["export", "absent.onnx", "-o", "out.onnx", "--batch", "one"], 2),
    ],
)
def test_statuses(arguments, status, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == status
    assert status in documented()
    if status == 1 and arguments[0] != "doctor":
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_interrupted_commands(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fanin.export, "inspect", interrupt, raising=False)
    assert runner.invoke(app, ["inspect", "any.onnx"]).exit_code == 130
    with pytest.raises(SystemExit) as stopped:
        _stop(signal.SIGTERM, None)
    assert stopped.value.code == 143
    assert {75, 130, 143} <= documented()


def test_the_doctors_json_is_alone_on_stdout_and_says_what_failed():
    result = runner.invoke(app, ["doctor", "absent.onnx", "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], found["plan"]) == (1, False, None)
    failed = [check for check in found["checks"] if not check["ok"]]
    assert "there is no such file" in failed[0]["detail"]
    assert failed[0]["remedy"].startswith("Check the path")
    assert all(check.keys() == {"name", "ok", "detail", "remedy"} for check in found["checks"])


def test_help_shows_flags_without_a_type():
    for command in ([], ["export"], ["bench", "layer"], ["analyze", "run"]):
        text = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "120"}).stdout
        assert "--help" in text
        assert "<bool>" not in text
        assert "BOOL" not in text.upper().replace("BOOLEAN", "")


def test_completion_is_offered():
    assert "--install-completion" in runner.invoke(app, ["--help"]).stdout
    environment = {"_FANIN_COMPLETE": "complete_bash", "COMP_WORDS": "fanin pr", "COMP_CWORD": "1"}
    result = runner.invoke(app, [], env=environment, prog_name="fanin")
    assert result.stdout.split() == ["prune"]
