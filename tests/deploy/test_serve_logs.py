"""Log lines: one per event, whatever it quotes, including the output of native code."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest
from onnx import numpy_helper

from .._waiting import PATIENCE
from ._serving import gain_model, requires_serving, save

requires_serving()

from fanin.deploy.serve import logs  # noqa: E402

ODD = ["\n", "\r", "\t", "\0", "\x1b[31m", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e"]


def text_line(message, error=None, **fields):
    record = logging.LogRecord("fanin.serve", logging.INFO, "", 0, message, (), None)
    record.fields = fields
    if error is not None:
        record.exc_info = (type(error), error, None)
    return logs._Text().format(record)


@pytest.mark.parametrize("char", ODD, ids=ascii)
def test_text_lines_escape_control_characters(char):
    line = text_line(f"a{char}b", ValueError(f"c{char}d"), path=f"/v2/{char}\\x", plain="é/ü")
    assert char == "\n" or char not in line
    message, *traceback = line.split("\n")
    assert len(message.splitlines()) == 1
    assert "plain=é/ü" in message
    quoted = message[message.index('path="') + 5 : message.index(" plain=")]
    assert json.loads(quoted) == f"/v2/{char}\\x"
    # Text quoted by an error cannot pass for a log line.
    assert traceback
    assert all(part.startswith("  ") and part.isprintable() for part in traceback)


def test_words_that_would_read_as_more_than_one_are_quoted():
    line = text_line("event", a="x y=z", b='"', c="")
    assert line.endswith(r'event a="x y=z" b="\"" c=""')


def run(code, **more):
    start = (
        "import ctypes, os, sys\n"
        "from fanin.deploy.serve.logs import configure_logging\n"
        "from fanin.deploy.serve.stderr_capture import stderr_as_events\n"
        "configure_logging('json')\n"
    )
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **more)


def test_native_lines_become_events():
    time = "2026-01-31 12:00:00.123456789"
    lines = (
        f"\x1b[0;93m{time} [W:onnxruntime:m, graph.cc:1 Clean] odd \u2028 name\x1b[m\n"
        f"{time} [E:onnxruntime:, executor.cc:2 Run] failed\n"
        "something else\n\n"
        "without an end"
    )
    done = run(
        f"with stderr_as_events():\n    os.write(2, {lines.encode()!r})\n"
        "os.write(2, b'behind\\n')\n"
    )
    *events, behind = done.stderr.splitlines()
    events = [json.loads(line) for line in events]
    assert [(event["event"], event["level"], event["text"]) for event in events] == [
        ("onnxruntime", "warning", "odd \u2028 name"),
        ("onnxruntime", "error", "failed"),
        ("stderr", "warning", "something else"),
        ("stderr", "warning", "without an end"),
    ]
    assert [event.get("session") for event in events[:2]] == ["m", None]
    assert events[0]["place"] == "graph.cc:1 Clean"
    assert behind == "behind"


def test_native_lines_do_not_wait_for_python():
    """As when a session warns while holding the GIL; no line is lost."""
    line = b"x" * 999 + b"\n"
    done = run(
        "with stderr_as_events():\n"
        f"    for _ in range(4): ctypes.PyDLL(None).write(2, {line!r} * 1000, 1000000)\n"
        "    os.write(2, b'y' * 100_000 + b'\\n')\n"
    )
    texts = [json.loads(line)["text"] for line in done.stderr.splitlines()]
    assert texts[:4000] == ["x" * 999] * 4000
    assert "".join(texts[4000:]) == "y" * 100_000
    assert max(map(len, texts)) < 10_000


def test_a_crash_is_reported_on_the_original_stderr():
    done = run("with stderr_as_events():\n    ctypes.string_at(0)\n")
    assert done.returncode < 0
    assert "Segmentation fault" in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_every_line_of_a_server_is_json(start, tmp_path, workers):
    model = gain_model(3)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "un\x1bused"))
    path = save(model, tmp_path / "m.onnx")
    with start(path, "--workers", workers) as server:
        events = server.wait_for("onnxruntime", workers)
        assert "un\x1bused" in events[0]["text"]
    for line in server.log.read_text().splitlines():
        assert json.loads(line)["event"]
