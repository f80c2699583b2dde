"""Virtual environments with other versions of packages, created by uv.

pip resolves to the newest versions only; uv can also resolve to the lowest declared ones. Its
environments are links into one cache, so that a dozen of them take little disk space and time.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A folder for wheels built from this source tree, which later runs reuse.
WHEELS_VARIABLE = "FANIN_WHEELS"


def uv(*arguments: object, given: str = "") -> str:
    """Run uv; returns its standard output."""
    module = pytest.importorskip("uv", reason="needs uv: pip install 'fanin[dev]'")
    command = [module.find_uv_bin(), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, input=given)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


@cache
def newest_python() -> str:
    """The newest Python on this machine for which fanin's dependencies have wheels."""
    for version in ("3.14", "3.13", "3.12"):
        try:
            return uv("python", "find", "--no-python-downloads", version).strip()
        except AssertionError:
            continue
    return sys.executable


def wheel(python: str, folder: Path) -> Path:
    """fanin's wheel for an interpreter, built unless the folder has one."""
    folder = Path(os.environ.get(WHEELS_VARIABLE, folder)).absolute()
    code = "import sys; print(*sys.version_info[:2], sep='')"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    pattern = f"fanin-*-cp{version.stdout.strip()}-*.whl"
    if not list(folder.glob(pattern)):
        uv("build", "--wheel", "--python", python, "--out-dir", folder, ROOT)
    (built,) = folder.glob(pattern)
    return built


def resolved(extra: str, resolution: str, python: str, tools: Sequence[str] = ()) -> str:
    """Requirements of an extra (or of fanin alone: ""), and of tools, each with its version."""
    extras = ["--extra", extra] if extra else []
    options = ["--resolution", resolution, "--python", python, "--no-header", "--no-annotate"]
    return uv(*("pip", "compile", *options, *extras, "pyproject.toml", "-"), given="\n".join(tools))


def install(python: Path, requirements: str, *wheels: Path) -> None:
    """Install exactly these packages, without their dependencies."""
    uv("pip", "install", "--python", python, "--no-deps", "-r", "-", *wheels, given=requirements)


def environment(folder: Path, python: str) -> Path:
    """Create an empty environment; returns its interpreter."""
    uv("venv", "--clear", "--python", python, folder)
    return folder / "bin" / "python"
