"""The serving walk-throughs in README and docs/serving.md work as written."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .._waiting import PATIENCE
from ._serving import REPOSITORY, port_of, requires_serving

requires_serving()

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
GUIDE = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_first_lines_of_the_guide(digits):
    (block,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", block], cwd=digits.parent, capture_output=True)
    assert done.returncode == 0, done.stderr


def commands(text, heading, end):
    """Lines of the console blocks between two headings, without installations."""
    section = text[text.index(heading) : text.index(end)]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("pip")]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A model like that of the README's run, untrained."""
    import torch

    from fanin.export import export
    from fanin.trainer.models import MLP

    torch.manual_seed(0)
    model = MLP(hidden=(48,)).build((1, 8, 8), 10).eval()
    with torch.no_grad():
        model.fc1.weight[torch.rand_like(model.fc1.weight) < 0.9] = 0
    path = tmp_path_factory.mktemp("digits") / "model.onnx"
    export(model, torch.full((1, 1, 8, 8), 0.5), path)
    return path


@pytest.mark.parametrize(
    ("text", "heading", "end"),
    [
        (README, "## Run and serve", "## [Documentation]"),
        (GUIDE, "## A server on one machine", "## Many machines"),
    ],
    ids=["README", "serving.md"],
)
def test_the_walk_through(digits, tmp_path, text, heading, end):
    """Runs each command in a shell, on a free port instead of 8000."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    shutil.copyfile(digits, tmp_path / "model.onnx")
    scripts = Path(sys.executable).parent
    environment = {"PATH": f"{scripts}:/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    lines = commands(text, heading, end)
    if text is GUIDE:
        demo = lines.pop(0)
        assert demo == "fanin demo"
        subprocess.run(["sh", "-c", demo], cwd=tmp_path, env=environment, check=True)
    start, *asks = lines
    assert len(asks) == (1 if text is README else 4)
    server = subprocess.Popen(
        ["sh", "-c", f"exec {start} --port 0"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = port_of(server.pid)
        answers = []
        for command in asks:
            command = command.replace("localhost:8000", f"localhost:{port}")
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            answers.append(done.stdout)
    finally:
        server.terminate()
        server.wait(PATIENCE)
    assert json.loads(answers[0])["inputs"][0]["shape"] == [-1, 1, 8, 8]
    if text is GUIDE:
        (output,) = json.loads(answers[1])["outputs"]
        labels = np.load(tmp_path / "fanin-demo" / "labels.npy")
        assert output["data"] == labels.tolist()
        promised = re.search(r"digits that the images\nshow, (.*)\.", GUIDE)[1]
        assert [int(digit) for digit in re.findall(r"\d", promised)] == labels.tolist()
        # The outputs follow each other: scores, then digits.
        raw = (tmp_path / "answer").read_bytes()[-8 * len(labels) :]
        assert np.frombuffer(raw, "<i8").tolist() == labels.tolist()


def test_every_option_that_the_guide_names_exists():
    found = set(re.findall(r"`(--[a-z-]+)", GUIDE)) | set(re.findall(r" (--[a-z-]+)", GUIDE))
    helped = ""
    commands = ("serve", "triton-repo", "calibrate", "bench server", "bench serving", "bench zoo")
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "fanin", *command.split(), "--help"],
            capture_output=True,
            text=True,
            env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
        )
        helped += done.stdout
    of_others = {"--data-binary", "--rm", "--model-repository", "--build", "--minutes", "--cpus"}
    assert [option for option in found - of_others if option not in helped] == []


def test_every_option_of_the_server_is_explained():
    from fanin.deploy.serve import ServeSettings

    unnamed = {"models", "token"}
    repeated = {"custom_op_libraries": "custom_op_library"}
    for name in ServeSettings.__dataclass_fields__:
        if name not in unnamed and name not in ("host", "port"):
            assert f"--{repeated.get(name, name).replace('_', '-')}" in GUIDE, name
    assert "FANIN_SERVE_TOKEN" in GUIDE
