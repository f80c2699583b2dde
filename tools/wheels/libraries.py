"""Checks what the libraries of a wheel need of the system against its platform tag.

    python tools/wheels/libraries.py dist/*.whl

Needs readelf (binutils). Exits with 1 and one line per problem if a library needs a newer glibc
than the tag promises, links something that is not part of every system, or lacks a measure of
cmake/hardening.cmake.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

# What a system of any manylinux policy has. libstdc++ is linked statically.
SYSTEM = r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d+"
MUSL_SYSTEM = r"libc\.(so|musl-\w+\.so\.1)"


def floor_of(tag: str) -> tuple[int, int] | None:
    """Return the lowest glibc that a platform tag promises; None for musl."""
    glibc = re.search(r"manylinux_(\d+)_(\d+)_", tag)
    if glibc is None and "musllinux_" not in tag:
        raise ValueError(f"{tag} is neither a manylinux nor a musllinux tag")
    return None if glibc is None else (int(glibc[1]), int(glibc[2]))


def newest_glibc(library: Path) -> tuple[int, int]:
    """Return the newest glibc release of which the library needs a symbol."""
    found = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", _readelf("--version-info", library))
    return max(((int(major), int(minor)) for major, minor in found), default=(0, 0))


def problems_of(library: Path, tag: str, limit: tuple[int, int] = (99, 0)) -> Iterator[str]:
    """Say what a library needs or lacks against the promise of its wheel's platform tag.

    Args:
        library: the file.
        tag: the platform tag of its wheel.
        limit: a glibc release that is enough, whatever newer one the tag asks for.

    Yields:
        One line per problem.

    """
    floor = floor_of(tag)
    newest = newest_glibc(library)
    if floor and newest > min(floor, limit):
        yield f"needs glibc {newest[0]}.{newest[1]}"
    dynamic = _readelf("--dynamic", library)
    for name in re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic):
        if not re.fullmatch(SYSTEM if floor else MUSL_SYSTEM, name):
            yield f"needs {name}"
    if re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", dynamic):
        yield "has a search path of its own, or writes into its code"
    if not re.search(r"\bBIND_NOW\b|\bNOW\b", dynamic):
        yield "does not bind all symbols when it is loaded"
    segments = _readelf("--program-headers", library)
    if "GNU_RELRO" not in segments:
        yield "has no read-only relocations"
    stack = re.search(r"GNU_STACK.*", segments)
    if stack is None or "E" in stack[0].split()[-2]:
        yield "has an executable stack"
    if "__stack_chk_fail" not in _readelf("--dyn-syms", library):
        yield "has no stack protector"


def check_wheel(wheel: Path, limit: tuple[int, int] = (99, 0)) -> list[str]:
    """Check each library of a wheel, as `problems_of` does; returns one line per problem."""
    tag = wheel.stem.split("-")[-1]
    if tag == "any":
        return [f"{wheel.name}: is built for no platform"]
    problems = []
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        for name in names:
            path = Path(archive.extract(name, folder))
            found = problems_of(path, tag, limit)
            problems += [f"{wheel.name}: {name} {problem}" for problem in found]
    return problems or ([] if names else [f"{wheel.name}: holds no library"])


def _readelf(what: str, path: Path) -> str:
    command = ["readelf", "--wide", what, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Check the wheels that the command line names."""
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        print("name the wheels to check", file=sys.stderr)
        return 2
    problems = [problem for wheel in wheels for problem in check_wheel(wheel)]
    print("\n".join(problems) or f"{len(wheels)} wheels need what their tags promise, no more")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
