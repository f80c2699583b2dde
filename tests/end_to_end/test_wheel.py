"""The wheel in an empty virtual environment: no torch, no import name besides fanin."""

import fcntl
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory, worker_id):
    """The Python of an environment with the wheel, one for all workers: a build takes minutes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = folder / "venv" / "bin" / "python"
        if not (folder / "ready").exists():
            install_wheel(folder, python)
            (folder / "ready").touch()
    return python


def install_wheel(folder, python):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
    subprocess.run(
        [*build, f"--config-settings=build-dir={folder / 'build'}"], check=True, cwd=folder
    )
    (wheel,) = folder.glob("fanin-*.whl")
    venv.create(folder / "venv", with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", wheel, "onnxruntime"], check=True, cwd=folder
    )


def run(python, code, **environment):
    result = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        cwd=python.parent,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_serving_packages_import_without_torch_and_onnx(bare_python):
    code = """
import importlib.util, sys
import fanin.ort_ops, fanin.deploy
print([name for name in ("torch", "onnx", "onnxscript") if importlib.util.find_spec(name)])
print("torch" in sys.modules, fanin.ort_ops.get_library_path().is_file())
"""
    assert run(bare_python, code).splitlines() == ["[]", "False True"]


def test_installing_adds_only_the_import_name_fanin(bare_python):
    code = """
import pathlib, sysconfig
site = pathlib.Path(sysconfig.get_paths()["platlib"])
print([n for n in ("trainer", "export", "deploy", "ort_ops", "src") if list(site.glob(n + "*"))])
print(sorted(p.name for p in (site / "fanin").iterdir() if p.is_dir() and p.name[0] != "_"))
print(len(list((site / "fanin").rglob("*.cc"))))
"""
    assert run(bare_python, code).splitlines() == [
        "[]",
        "['cli', 'deploy', 'export', 'onnx_file', 'ort_ops', 'trainer']",
        "0",
    ]


def test_test_dependencies_are_not_installed(bare_python):
    code = """
import pathlib, fanin.ort_ops
folder = pathlib.Path(fanin.ort_ops.__file__).parent
print(sorted(path.name.split(".")[0] for path in folder.glob("*.so") if "cuda" not in path.name))
print([path.name for path in folder.glob("*emulation*")])
"""
    assert run(bare_python, code).splitlines() == ["['_native', 'libfanin_ort_ops']", "[]"]


def test_a_model_runs_in_the_bare_environment(bare_python):
    code = """
from fanin.deploy.doctor import run_checks
print([check.name for check in run_checks() if not check.ok])
"""
    assert run(bare_python, code) == "[]"


def test_the_command_line_states_what_to_install(bare_python):
    result = subprocess.run(
        [bare_python.parent / "fanin", "train", "anything", "-o", "run"],
        capture_output=True,
        text=True,
        cwd=bare_python.parent,
        check=False,
    )
    assert result.returncode == 1
    assert "pip install 'fanin[train]'" in result.stderr


@pytest.mark.parametrize("library", ["libfanin_ort_ops.so"])
def test_the_library_links_only_the_system(bare_python, library):
    path = run(bare_python, "import fanin.ort_ops as o; print(o.get_library_path())")
    assert Path(path).name == library
    needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].split("/")[-1].split(".so")[0] for line in needed.splitlines()}
    assert names <= {
        "linux-vdso",
        "libstdc++",
        "libm",
        "libgcc_s",
        "libc",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
        "libpthread",
        "libdl",
    }
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    ).stdout.split()
    assert symbols[2::3] == ["RegisterCustomOps"]
