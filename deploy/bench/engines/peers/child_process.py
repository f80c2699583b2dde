"""A child process that answers requests: the benchmark's end of worker.py's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....._base.atomic import output_folder
from ....._base.user_folders import cache_folder

DEEPSPARSE_PYTHON = Path(".cache/deepsparse-venv/bin/python")
"""Where ``make deepsparse-env`` puts it, in the working directory."""

REMEDIES = {
    "deepsparse": "run make deepsparse-env in a checkout of fanin, or pass --deepsparse-python",
    "openvino": "run: pip install openvino",
    "scipy-csr": "run: pip install 'fanin[bench]'",
    **dict.fromkeys(
        ("torch", "torch-csr", "torch-gather", "torch-int8"), "run: pip install 'fanin[train]'"
    ),
}
"""What to do when the package of a kind is missing."""

NO_DEEPSPARSE = f"DeepSparse's Python is not there; {REMEDIES['deepsparse']}"

_WORKER = Path(__file__).parents[1] / "child" / "worker.py"

# Longer than any model takes to compile; a process that hangs must not hang the benchmark.
_LIMIT = 900.0

_TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class ChildProcess:
    """A worker and its scratch folder, from construction until ``close``.

    Args:
        kind: runtime that it will be asked for, which decides the environment variables.
        threads: number of threads that libraries in the process may start.
        remedy: how to install the package of ``kind``, for the error when it is missing.
        command: starts the worker.

    """

    def __init__(self, kind: str, threads: int, remedy: str, command: Sequence[str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fanin-peer-")
        self.folder = Path(self._scratch.name)
        self._remedy = remedy
        with open(self.folder / "stderr", "wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=_environment(kind, threads, self.folder),
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request of worker.py's protocol and return the reply.

        Raises:
            RemoteError: the request failed, the process ended, or it took longer than 900 s.

        """
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(_LIMIT, end)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line and late.is_set():
            raise RemoteError(f"it took longer than {_LIMIT:g} s to {do}")
        if not line:
            raise RemoteError(self._exit_reason())
        reply: dict[str, Any] = json.loads(line)
        if "missing" in reply:
            raise RemoteError(f"{reply['error']}; {self._remedy}")
        if "error" in reply:
            raise RemoteError(reply["error"])
        return reply

    def close(self) -> None:
        """End the process and remove its files."""
        try:
            self.process.communicate(timeout=5)  # closes stdin, which ends a healthy worker
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self._scratch.cleanup()

    def _exit_reason(self) -> str:
        status = self.process.wait()
        lines = (self.folder / "stderr").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no error output")
        return f"its process ended with status {status}: {last.strip()}"


class RemoteError(RuntimeError):
    """The child process could not do what it was asked."""


def worker_command(kind: str, deepsparse_python: Path) -> tuple[str, str]:
    """Return the command of a worker: DeepSparse lives under a Python of its own."""
    # No symlink is followed: an environment's interpreter finds its packages by its path.
    python = str(deepsparse_python.absolute()) if kind == "deepsparse" else sys.executable
    return python, str(_WORKER)


def _environment(kind: str, threads: int, scratch: Path) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    cache = {}
    if kind.startswith("torch") and _TORCH_CACHE not in os.environ:
        cache = {_TORCH_CACHE: str(_compiled_layers(scratch))}
    # DeepSparse reports its use over the network when imported, unless told not to.
    fixed = {**dict.fromkeys(names, str(threads)), "NM_DISABLE_ANALYTICS": "1"}
    return {**cache, **os.environ, **fixed}


def _compiled_layers(scratch: Path) -> Path:
    """Say where later runs find compiled layers again, even when the system has emptied /tmp."""
    cache = cache_folder()
    try:
        if cache is None:
            raise OSError("this user has no home folder")
        return output_folder(cache / "torchinductor")
    except OSError as error:
        warnings.warn(f"compiled layers are not kept for later runs: {error}", stacklevel=2)
        return scratch / "torchinductor"
