"""The tool that measures the server: what it reads from wrk."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parent.parent.parent / "tools" / "_serving.py"


@pytest.fixture(scope="module")
def read_wrk():
    spec = importlib.util.spec_from_file_location("tools_serving", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look here
    spec.loader.exec_module(module)
    yield module.read_wrk
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("half", "most", "p50", "p99"),
    [
        ("812.00us", "  1.94ms", 0.812, 1.94),
        ("  6.43ms", " 23.98ms", 6.43, 23.98),
        ("  1.30s ", "  1.94s ", 1300, 1940),
    ],
)
def test_latencies_of_every_unit_are_read(read_wrk, half, most, p50, p99):
    text = f"  Latency Distribution\n     50%  {half}\n     75%    2.00s \n     99%  {most}\n"
    text += "  3 requests in 2.00s, 12.59KB read\nRequests/sec:      1.50\n"
    found = read_wrk(text)
    assert found == pytest.approx({"requests_per_second": 1.5, "p50_ms": p50, "p99_ms": p99})


def test_text_of_something_else_is_refused(read_wrk):
    with pytest.raises(RuntimeError, match="not understood"):
        read_wrk("Requests/sec: 12\n")
