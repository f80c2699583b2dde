"""Use a model in an application: without copies, from several threads, from asyncio.

    python app.py model.onnx

Needs fanin and onnxruntime, but neither torch nor onnx.
"""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime

from fanin.deploy import SessionError, open_session

BATCH = 1


def zeros_for(value) -> np.ndarray:
    """Return an array for an input or output; open dimensions have size BATCH."""
    shape = [size if isinstance(size, int) else BATCH for size in value.shape]
    return np.zeros(shape, np.float32)


def bind(session, x: np.ndarray, y: np.ndarray):
    """Make the session read x and write y in place; do this once, before a loop."""
    binding = session.io_binding()
    binding.bind_cpu_input(session.get_inputs()[0].name, x)
    binding.bind_output(
        session.get_outputs()[0].name,
        "cpu",
        0,
        np.float32,
        y.shape,
        y.ctypes.data,
    )
    return binding


def loop_without_copies(session) -> np.ndarray:
    """Use the same two buffers in every run, so that nothing is allocated."""
    x, y = zeros_for(session.get_inputs()[0]), zeros_for(session.get_outputs()[0])
    binding = bind(session, x, y)
    for step in range(3):
        x[:] = step
        session.run_with_iobinding(binding)
    return y.copy()


def from_several_threads(session, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run one session from several threads at the same time; it needs no lock."""
    name = session.get_inputs()[0].name
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda x: session.run(None, {name: x})[0], inputs))


def sessions_that_share(path: Path, count: int) -> list[onnxruntime.InferenceSession]:
    """Open several sessions of a file; each has its own threads, but they share packed weights."""
    return [open_session(path, threads=1) for _ in range(count)]


async def from_asyncio(session, x: np.ndarray) -> np.ndarray:
    """Run the session on another thread; it releases the GIL, so the event loop continues."""
    name = session.get_inputs()[0].name
    (y,) = await asyncio.to_thread(session.run, None, {name: x})
    return y


def main() -> None:
    path = Path(sys.argv[1])
    try:
        session = open_session(path, threads=1)
    except SessionError as error:
        sys.exit(f"{error}")  # says what is wrong, where, and what to do
    print("last output of the loop:", loop_without_copies(session).ravel()[:3])

    rng = np.random.default_rng(0)
    shape = zeros_for(session.get_inputs()[0]).shape
    inputs = [rng.standard_normal(shape, np.float32) for _ in range(8)]
    together = from_several_threads(session, inputs)
    others = sessions_that_share(path, 2)
    for x, y in zip(inputs, together, strict=True):
        for other in others:
            again = other.run(None, {other.get_inputs()[0].name: x})[0]
            assert np.array_equal(again, y)
    assert np.array_equal(asyncio.run(from_asyncio(session, inputs[0])), together[0])
    count, threads = 1 + len(others), threading.active_count()
    print(f"{len(inputs)} runs agree, in {count} sessions, {threads} thread left")


if __name__ == "__main__":
    main()
