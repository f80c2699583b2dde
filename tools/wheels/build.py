"""Builds the sdist and the wheels of fanin and fanin-cuda into dist/, without a container.

    python tools/wheels/build.py [--out dist] [--only NAME ...] [--twice]

Wheels are built from the unpacked sdist and checked by libraries.py. One whose compiler is not here
is left out, and a line says why. With --twice each is built in two folders, and the bytes compared.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from libraries import check_wheel

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")  # t: free-threaded
# onnxruntime's own wheels need glibc 2.27 or 2.28; the libraries need 2.25.
GLIBC = "manylinux_2_27"
MUSL = "musllinux_1_2"


@dataclass(frozen=True)
class Recipe:
    """One wheel: its platform, its folder in the tree, and what CMake is told."""

    name: str
    platform: str
    python: str
    folder: str = "."
    settings: dict[str, str] = field(default_factory=dict)
    cmake: tuple[str, ...] = ()
    missing: str = ""  # why it cannot be built here

    def command(self, source: Path, out: Path) -> list[str]:
        """Return uv's command that builds it from an unpacked sdist."""
        options = [f"--config-setting={key}={value}" for key, value in self.settings.items()]
        build = ["build", "--quiet", "--wheel", "--python", self.python, "--out-dir", str(out)]
        return [uv(), *build, *options, str(source / self.folder)]

    def environment(self, source: Path) -> dict[str, str]:
        """Return what the build sees: CMake's options, and the time of all files."""
        options = [option.replace("SOURCE", str(source)) for option in self.cmake]
        return {"CMAKE_ARGS": " ".join(options), "SOURCE_DATE_EPOCH": epoch()}


def recipes() -> Iterator[Recipe]:
    """Yield every wheel that this project distributes for Linux."""
    cpu = {"cmake.define.FANIN_PORTABLE": "ON", "cmake.define.FANIN_CUDA": "OFF"}
    runtime = cpu | {"cmake.define.FANIN_PYTHON": "OFF", "wheel.py-api": "py3"}
    here = sys.executable
    yield Recipe("x86_64", f"{GLIBC}_x86_64", here, settings=runtime)
    for version in PYTHONS:
        found = find_python(version)
        short = f"cp{version.replace('.', '')}"
        missing = "" if found else f"there is no Python {version}"
        yield Recipe(short, f"{GLIBC}_x86_64", found or version, settings=cpu, missing=missing)
    cross = "-DCMAKE_TOOLCHAIN_FILE=SOURCE/cmake/"
    yield Recipe(
        "aarch64",
        f"{GLIBC}_aarch64",
        here,
        settings=runtime,
        cmake=(f"{cross}aarch64-linux-gnu.cmake",),
        missing=absent("aarch64-linux-gnu-g++", "apt package g++-aarch64-linux-gnu"),
    )
    zig = find_zig()
    yield Recipe(
        "musl",
        f"{MUSL}_x86_64",
        here,
        settings=runtime,
        cmake=(f"{cross}x86_64-linux-musl.cmake", f"-DFANIN_ZIG={zig}"),
        missing="" if zig else "there is no zig (pip install ziglang)",
    )
    yield Recipe(
        "cuda",
        f"{GLIBC}_x86_64",
        here,
        folder="packaging/cuda",
        missing=absent("nvcc", "CUDA 12.8 or newer"),
    )


def absent(program: str, source: str) -> str:
    """Return why a program cannot be used, or nothing."""
    return "" if shutil.which(program) else f"there is no {program} ({source})"


def uv() -> str:
    """Return the path of uv, of this environment or the PATH."""
    if importlib.util.find_spec("uv"):
        from uv import find_uv_bin

        return str(find_uv_bin())
    return "uv"


def find_python(version: str) -> str | None:
    """Return the path of an installed Python; one of pyenv without its shims, which may fail.

    Others are found on the PATH; a version that ends with t is free-threaded.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    release = version.removesuffix("t")
    for folder in sorted(pyenv.glob(f"versions/{release}.*")):
        python = folder / "bin" / "python3"
        if python.exists() and folder.name.endswith("t") == version.endswith("t"):
            return str(python)
    command = [uv(), "python", "find", "--no-python-downloads", "--no-project", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.stdout.strip() if done.returncode == 0 else None


def find_zig() -> str | None:
    """Return the path of zig, of the package ziglang or the PATH."""
    package = importlib.util.find_spec("ziglang")
    if package and package.origin:
        return str(Path(package.origin).with_name("zig"))
    return shutil.which("zig")


def epoch() -> str:
    """Return the time that all files in the archives get: the commit's, unless it is given."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip() or "315532800"  # of an archive: 1980, zip's first year


def build_sdist(out: Path) -> Path:
    """Build the sdist; returns its path."""
    command = [uv(), "build", "--quiet", "--sdist", "--out-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": epoch()})
    (sdist,) = out.glob("fanin-*.tar.gz")
    return sdist


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist into a new folder; returns the tree."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def build(recipe: Recipe, source: Path, out: Path) -> Path:
    """Build one wheel; returns its path."""
    folder = out / f".{recipe.name}"
    shutil.rmtree(folder, ignore_errors=True)
    environment = os.environ | recipe.environment(source)
    subprocess.run(recipe.command(source, folder), check=True, env=environment)
    (wheel,) = folder.glob("*.whl")
    tag = ["tool", "run", "--quiet", "wheel", "tags", "--remove", "--platform-tag"]
    command = [uv(), *tag, recipe.platform, str(wheel)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    wheel = wheel.replace(out / wheel.name)
    shutil.rmtree(folder)
    return wheel


def main() -> int:
    """Build what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    names = [recipe.name for recipe in recipes()]
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--twice", action="store_true", help="compare with a second build")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.only == names:
        for old in (*out.glob("fanin*.whl"), *out.glob("fanin*.tar.gz")):
            old.unlink()
    sdist = build_sdist(out)
    print(f"{sdist.name}  {sdist.stat().st_size / 1e6:.2f} MB", flush=True)
    source = unpack(sdist, ROOT / "build" / "wheels" / "source")
    problems = []
    for recipe in recipes():
        if recipe.name not in arguments.only:
            continue
        if recipe.missing:
            print(f"{recipe.name}: left out, {recipe.missing}", flush=True)
            continue
        start = time.monotonic()
        wheel = build(recipe, source, out)
        seconds = time.monotonic() - start
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}  {size:.2f} MB, {seconds:.0f} s", flush=True)
        problems += check_wheel(wheel)
        if arguments.twice:
            problems += compare(recipe, sdist, wheel)
    print("\n".join(problems) or "every wheel needs what its tag promises, no more")
    return 1 if problems else 0


def compare(recipe: Recipe, sdist: Path, wheel: Path) -> list[str]:
    """Build a wheel again in another folder; returns a problem if its bytes differ."""
    elsewhere = ROOT / "build" / "wheels" / "again"
    again = build(recipe, unpack(sdist, elsewhere / "other-source"), elsewhere)
    same = again.read_bytes() == wheel.read_bytes()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if same:
        print(f"  the same bytes again: sha256 {digest}", flush=True)
    return [] if same else [f"{wheel.name}: a second build differs ({again})"]


if __name__ == "__main__":
    sys.exit(main())
