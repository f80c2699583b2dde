"""Files with operators of somebody else's custom-op library, beside ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError, open_session
from fanin.deploy.doctor import check_model_file, check_plan
from fanin.deploy.serve.settings import ModelSource, ServeSettings, SettingsError
from fanin.deploy.serve.state import ServerState
from fanin.export import ExportError, convert

from .onnx_models import node, sparse, write_model

W = sparse((48, 32))
X = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
UNKNOWN = "Twice of (the )?domain 'test.other'"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    twice = helper.make_node("Twice", ["x"], ["h"], name="twice", domain="test.other")
    path = write_model(tmp_path / "in.onnx", [twice, node("MatMul", ["h", "w"])], {"w": W})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("test.other", 1))
    onnx.save(model, path)
    return path


@pytest.fixture
def converted(source: Path, tmp_path: Path, other_library: Path) -> Path:
    target = tmp_path / "out.onnx"
    report = convert(source, target, policy="condensed", custom_op_libraries=[other_library])
    assert [check.relative_error < 1e-5 for check in report.parity] == [True, True]
    return target


def test_a_session_registers_both_libraries(converted: Path, other_library: Path):
    session = open_session(converted, custom_op_libraries=[other_library, str(other_library)])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], 2 * X @ W, atol=1e-5)
    remedy = r"--custom-op-library PATH .* custom_op_libraries=\[PATH\] of open_session"
    with pytest.raises(SessionError, match=f"node 'twice' uses {UNKNOWN}.*{remedy}"):
        open_session(converted)


def test_an_export_names_the_domain_and_the_option(source: Path, tmp_path: Path, other_library):
    with pytest.raises(ExportError, match=f"node {UNKNOWN}.*--custom-op-library PATH"):
        convert(source, tmp_path / "out.onnx", policy="condensed")
    runner, command = CliRunner(), ["export", str(source), "-o", str(tmp_path / "out.onnx")]
    command += ["--policy", "condensed"]
    failed = runner.invoke(app, command)
    assert (failed.exit_code, "--custom-op-library" in failed.output) == (1, True)
    done = runner.invoke(app, [*command, "--custom-op-library", str(other_library)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda _path: None, "does not exist or is not a file"),
        (lambda path: path.mkdir(), "does not exist or is not a file"),
        (lambda path: path.write_text("text"), "cannot be registered: Failed to load"),
    ],
)
def test_what_is_no_library_is_named(source: Path, tmp_path: Path, make, sentence: str):
    library = tmp_path / "no.so"
    make(library)
    with pytest.raises(SessionError, match=rf"custom-op library .*no\.so {sentence}"):
        open_session(source, custom_op_libraries=[library])
    with pytest.raises((ExportError, ValueError), match=rf"custom-op library .*no\.so {sentence}"):
        convert(source, tmp_path / "out.onnx", policy="condensed", custom_op_libraries=[library])
    assert not (tmp_path / "out.onnx").exists()


def test_the_doctor_opens_and_plans_the_model(converted: Path, other_library: Path):
    found = check_model_file(converted)
    assert [check.ok for check in found] == [False]
    assert "--custom-op-library" in found[0].remedy
    assert all(check.ok for check in check_model_file(converted, [other_library]))
    check, plan = check_plan(converted, 2, [1], [other_library])
    assert check.ok
    assert plan is not None


def test_a_server_loads_the_model_also_in_its_trial(converted: Path, other_library: Path):
    source = ModelSource("net", converted)
    settings = ServeSettings((source,), poll=0, custom_op_libraries=(str(other_library),))
    assert ServeSettings.from_json(settings.to_json()) == settings
    state = ServerState(settings)
    try:
        state.open()
        assert state.repository.versions("net") == ["1"]
    finally:
        state.close()
    with pytest.raises(SettingsError, match="does not exist"):
        ServeSettings((source,), custom_op_libraries=("nowhere.so",))
