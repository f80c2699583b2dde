"""The process of a trial: opens each version that it is told of, runs it once, and says so.

Questions come as lines of JSON on stdin; the answer to each is a byte on stdout.
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
from .parent import signal_at_parents_end
from .signature import read_signature

_FATAL = 4  # of ONNX Runtime's severities: what it says less urgently, it will say in the server


def main() -> None:
    """Answer until stdin ends, or the process does that is named on the command line."""
    signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit()
    _be_the_first_without_memory()
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library may print is no answer
    warnings.simplefilter("ignore")
    map_large_blocks()
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _try(Path(question["path"]), question["threads"])
        release_unused()
        os.write(answers, b".")


def _try(path: Path, threads: int) -> None:
    with contextlib.suppress(Exception):  # the server will meet it, and tell it
        load_onnxruntime().set_default_logger_severity(_FATAL)
        session = open_session(path, threads=threads)
        warm_up(session, read_signature(session, path), path)


def _be_the_first_without_memory() -> None:
    """Let the kernel kill this process, not the server, where memory runs out for both."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
