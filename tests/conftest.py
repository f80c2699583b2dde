"""Clears environment variables of terminals, CI services, tokens and clusters for all tests.

Nor do they see what the user has measured on this machine.

This file is loaded before any test imports a module that reads these variables.
"""

import os
import subprocess
from pathlib import Path

import pytest

for name in (
    # Of terminals and CI services: rich and typer would color and wrap output that tests parse.
    *("CLICOLOR_FORCE", "FORCE_COLOR", "GITHUB_ACTIONS", "NO_COLOR", "PY_COLORS"),
    *("TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"),
    # Of a server, a cluster or torchrun.
    *("FANIN_SERVE_TOKEN", "PROMETHEUS_MULTIPROC_DIR", "RAY_ADDRESS"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "80"
# Exports choose by the user's own calibration where there is one.
os.environ.pop("FANIN_CALIBRATION", None)
os.environ["XDG_DATA_HOME"] = "/nonexistent"
# A collector of spans may be there, or be switched off.
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]
# Tests reach their servers, which run on this machine, without a proxy.
for name in ("no_proxy", "NO_PROXY"):
    others = [os.environ[name]] if os.environ.get(name) else []
    os.environ[name] = ",".join([*others, "127.0.0.1", "::1", "localhost"])


@pytest.fixture(scope="session")
def other_library(tmp_path_factory) -> Path:
    """Build a custom-op library that is not fanin's: Twice of the domain test.other."""
    here, library = Path(__file__).parent, tmp_path_factory.mktemp("other") / "other.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-shared", "-fPIC"]
    command += [f"-I{here.parent / 'ort_ops' / 'csrc'}", here / "other_library.cc", "-o", library]
    subprocess.run(list(map(str, command)), check=True)
    return library
