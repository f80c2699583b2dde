"""Installs the wheels of dist/ into bare environments and runs smoke.py in each, offline.

    python tools/wheels/check.py [--dist dist] [--python 3.12 ...] [--root FOLDER ...]
        [--emulated FOLDER ...] [--musl PYTHON ...] [--bench]

--python: a new virtual environment of an installed Python (default: each of 3.11 to 3.15 found; t:
free-threaded). --root: the root file system of another distribution with Pythons of its own,
entered with chroot (as root). --emulated: that of an Arm64 distribution, whose Python qemu-user
runs. debootstrap makes both. --musl: a Python that is built for musl; without onnxruntime, which
has no wheel for it.
Exits with 1 if an environment fails; a platform that is not here is named, not passed over.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from build import PYTHONS as PYTHONS_OF_WHEELS
from build import ROOT, find_python, uv

SMOKE = Path(__file__).with_name("smoke.py")
PYTHONS = (*PYTHONS_OF_WHEELS, "3.15")
ARM = ("manylinux_2_27_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
# Later ones crash at import under qemu 7.2 (tools/aarch64_ort.sh).
EMULATED_ONNXRUNTIME = "onnxruntime==1.23.2"
NUMPY_MODEL = """
import sys
from pathlib import Path
import numpy as np
import onnx
from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops.format.condensed import CondensedWeight

rng = np.random.default_rng(0)
dense = rng.standard_normal((96, 300)).astype(np.float32)
dense[np.argsort(rng.random(dense.shape), axis=1) >= 30] = 0
x = rng.standard_normal((3, 300)).astype(np.float32)
y = (x.astype(np.float64) @ dense.T.astype(np.float64)).astype(np.float32)
folder = Path(sys.argv[1])
onnx.save(condensed_layer_model(CondensedWeight.from_dense(dense), None), folder / "model.onnx")
np.savez(folder / "expected.npz", x=x, y=y)
"""


def run(*command: object, **changed: str) -> str:
    """Run a command; returns what it printed, and raises if it fails."""
    environment = os.environ | changed
    environment.pop("PYTHONPATH", None) if "PYTHONPATH" not in changed else None
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def in_venv(python: str, dist: Path, folder: Path, model: Path, *, bench: bool) -> str:
    """Check a new virtual environment of a Python of this machine."""
    venv = folder / "venv"
    run(uv(), "venv", "--quiet", "--no-project", "--python", python, venv)
    inside = venv / "bin" / "python"
    extra = "fanin[bench]" if bench else "fanin"
    # Wheels only: for a new kind of Python, the newest release of a dependency may have none yet.
    run(uv(), "pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:",
        "--find-links", dist, extra, "onnxruntime")  # fmt: skip
    arguments = ["bench"] if bench else []
    return run(inside, "-I", SMOKE, model / "model.onnx", model / "expected.npz", *arguments)


def of_musl(python: str, dist: Path, folder: Path, model: Path) -> str:
    """Check a Python for musl: the kernels alone."""
    venv = folder / "venv"
    run(uv(), "venv", "--quiet", "--no-project", "--python", python, venv)
    inside = venv / "bin" / "python"
    run(uv(), "pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:",
        "--find-links", dist, "fanin")  # fmt: skip
    files = [model / "model.onnx", model / "expected.npz"]
    return run(inside, "-I", SMOKE, *files, "kernels-only")


def pythons_of(root: Path) -> Iterator[Path]:
    """Yield the Pythons of a root file system that fanin supports."""
    for pattern in ("opt/python*/bin/python3", "usr/local/bin/python3.1?", "usr/bin/python3.1?"):
        yield from sorted(root.glob(pattern))


def in_root(python: Path, dist: Path, _folder: Path, model: Path, *, root: Path) -> str:
    """Check another distribution: wheels are fetched here and installed there without an index."""
    inside = "/" + str(python.relative_to(root))
    version = run("chroot", root, inside, "-c",
                  "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags)")  # fmt: skip
    libc = run("chroot", root, inside, "-c", "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))")
    tags = [f"manylinux_2_{n}_x86_64" for n in range(17, int(libc.split(".")[1]) + 1)]
    work = Path(tempfile.mkdtemp(prefix="wheels-", dir=root / "tmp"))
    try:
        download(work, version.strip(), ["manylinux2014_x86_64", *tags], dist)
        for file in (SMOKE, model / "model.onnx", model / "expected.npz"):
            shutil.copy(file, work)
        at = "/" + str(work.relative_to(root))
        run("chroot", root, inside, "-m", "venv", f"{at}/venv")
        run("chroot", root, f"{at}/venv/bin/python", "-m", "pip", "install", "--quiet",
            "--disable-pip-version-check", "--no-index", "--find-links", at, "fanin",
            "onnxruntime")  # fmt: skip
        files = [f"{at}/{name}" for name in ("smoke.py", "model.onnx", "expected.npz")]
        return run("chroot", root, f"{at}/venv/bin/python", "-I", *files)
    finally:
        shutil.rmtree(work)


def emulated(root: Path, dist: Path, folder: Path, model: Path) -> str:
    """Check an Arm64 distribution, process by process under qemu-user."""
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        raise RuntimeError("there is no qemu-aarch64 (apt package qemu-user-static)")
    python = sorted(root.glob("usr/bin/python3.1?"))[-1]
    version = python.name.removeprefix("python")
    site = folder / "site"
    options = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
    platforms = [part for tag in ARM for part in ("--platform", tag)]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options,
        *platforms, "--target", site, "--find-links", dist,
        "fanin", EMULATED_ONNXRUNTIME)  # fmt: skip
    files = [SMOKE, model / "model.onnx", model / "expected.npz"]
    return run(qemu, "-L", root, python, *files, PYTHONPATH=str(site), QEMU_CPU="cortex-a72")


def download(folder: Path, version: str, platforms: Sequence[str], dist: Path) -> None:
    """Download fanin's and onnxruntime's wheels for another system."""
    tags = [part for tag in platforms for part in ("--platform", tag)]
    abi = f"cp{version.replace('.', '')}"
    run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--only-binary=:all:", "--python-version", version.removesuffix("t"), "--implementation",
        "cp", "--abi", abi, "--abi", "none", *tags, "--dest", folder,
        "--find-links", dist, "fanin", "onnxruntime")  # fmt: skip


def main() -> int:
    """Check every environment that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", nargs="*", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--root", nargs="*", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--emulated", nargs="*", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--musl", nargs="*", default=[], metavar="PYTHON")
    parser.add_argument("--bench", action="store_true", help="also run fanin bench layer")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    if not list(dist.glob("fanin-*.whl")):
        print(f"{dist} holds no wheel of fanin: run make wheels", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-c", NUMPY_MODEL, folder)
        results = [
            report(label, place, check, dist, folder, **more)
            for label, place, check, more in environments(arguments)
        ]
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if results and all(results) else 1


def environments(arguments: argparse.Namespace) -> Iterator[tuple]:
    """Yield each environment: its name, its place, its check, and what that needs besides."""
    for version in arguments.python:
        python = find_python(version)
        if python is None:
            print(f"== Python {version}: NOT CHECKED, it is not on this machine")
            continue
        yield f"Python {version}", python, in_venv, {"bench": arguments.bench}
    for root in map(Path.resolve, arguments.root):
        for python in pythons_of(root):
            label = f"root file system {root.name}, {python.relative_to(root)}"
            yield label, python, in_root, {"root": root}
        if not any(pythons_of(root)):
            raise SystemExit(f"{root} has no Python that fanin supports")
    for root in arguments.emulated:
        yield f"emulated {root.name}", root.resolve(), emulated, {}
    for python in arguments.musl:
        yield f"musl, {python}", python, of_musl, {}
    for asked, what in ((arguments.root, "another distribution (--root)"),
                        (arguments.emulated, "Arm64 (--emulated)"),
                        (arguments.musl, "musl (--musl)")):  # fmt: skip
        if not asked:
            print(f"== {what}: NOT CHECKED")
    print(f"== Windows, macOS: NOT CHECKED on this {platform.system()}")


def report(label: str, place, check, dist: Path, model: Path, **more) -> bool:
    """Run one check and print its result."""
    print(f"== {label}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(check(place, dist, Path(folder), model, **more), flush=True)
        except RuntimeError as error:
            print(f"FAILED: {error}", flush=True)
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
