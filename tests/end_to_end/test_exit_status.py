"""The exit statuses that docs/commands.md lists, and what goes to which stream."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import fanin.export
from fanin.cli import _stop, app
from fanin.export import CondensedWeight
from fanin.export.onnx_op import dense_layer_model

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
        (["inspect", ""], 2),
        (["export", "absent.onnx", "-o", ""], 2),
        (["demo", "--out="], 2),
        (["inspect", "absent.onnx", "--fast"], 2),
        (["inspect", "absent.onnx", "--dim", "sequence"], 2),
        (["inspect", "absent.onnx", "--dim", "n=3", "--dim", "n=5"], 2),
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


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", LONG],
        ["export", LONG, "-o", "o.onnx"],
        ["quantize", LONG, "-o", "o.onnx"],
        ["prune", LONG, "-o", "o.onnx", "--sparsity", "0.9"],
        ["train", LONG, "-o", "run"],
        ["export", "absent.onnx", "-o", LONG],
        ["calibrate", "-o", LONG],
        ["demo", "-o", LONG],
        ["demo", "-o", "a/" * 2000],
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_a_name_that_no_file_can_have_is_one_sentence(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match(r"fanin: .*\n\Z", result.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [".", "/", ".."])
@pytest.mark.parametrize(
    "command",
    [["export", "absent.onnx"], ["calibrate"], ["calibrate", "--device", "cuda"]],
    ids=" ".join,
)
def test_a_folder_in_the_place_of_an_output_file_is_named(command, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, [*command, "-o", folder])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"fanin: {folder} is a folder; name a file in it\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_report_that_cannot_be_printed_is_one_sentence(options, tmp_path):
    model = tmp_path / "model.onnx"
    weight = np.ones((40, 40), np.float32)
    onnx.save(dense_layer_model(CondensedWeight.from_dense(weight), 1), model)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fanin", "inspect", str(model), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "fanin: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize(
    "arguments", [["library-path"], ["--version"], ["bench", "--help"], ["doctor", "--json"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        (">&-", "standard output is closed; to do without what is printed, add >/dev/null"),
        ("1</dev/null", "cannot write to standard output: Bad file descriptor"),
    ],
)
def test_a_result_that_is_lost_is_an_error(arguments, unbuffered, redirection, said):
    command = f"{shlex.join([sys.executable, '-m', 'fanin', *arguments])} {redirection}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, f"fanin: {said}\n")


def test_files_do_not_take_the_numbers_of_closed_streams(tmp_path):
    program = "from fanin.cli.stdout import occupy_standard_streams as occupy; occupy(); "
    program += "import os; print(open(os.devnull).fileno(), file=open('number', 'w'))"
    command = f"{shlex.join([sys.executable, '-c', program])} <&- >&- 2>&-"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert int((tmp_path / "number").read_text()) > 2


def test_a_reader_that_stops_ends_a_command_without_a_word():
    command = f"{shlex.join([sys.executable, '-m', 'fanin', '--help'])} | true; "
    command += "exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


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
