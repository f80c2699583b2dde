"""The process of a trial: opens each version it is told and runs it once.

Requests are lines of JSON on stdin; the response to each is one byte on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path

from ..runtime import load_onnxruntime
from ..session import open_session
from .loaded_model import warm_up
from .memory import map_large_blocks, release_unused
from .parent_exit import signal_on_parent_exit
from .signature import read_signature

_FATAL = 4  # ONNX Runtime log severity; the server logs the lower ones when it opens the version


def main() -> None:
    """Serve trials until stdin ends or the parent, whose process id is in argv, exits."""
    signal_on_parent_exit(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit()
    _be_first_oom_victim()
    responses = os.dup(1)
    os.dup2(2, 1)  # keeps prints of libraries out of the responses
    warnings.simplefilter("ignore")
    map_large_blocks()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _try(Path(request["path"]), request["threads"], request["libraries"])
        release_unused()
        os.write(responses, b".")


def _try(path: Path, threads: int, libraries: list[str]) -> None:
    with contextlib.suppress(Exception):  # the server will meet and report it
        load_onnxruntime().set_default_logger_severity(_FATAL)
        session = open_session(path, threads=threads, custom_op_libraries=libraries)
        warm_up(session, read_signature(session, path), path)


def _be_first_oom_victim() -> None:
    """Make the kernel kill this process, not the server, if memory runs out for both."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
