"""Memory that sessions of a model take, measured in the process that holds them.

Runs under any Python from 3.8 on that has NumPy and the engine's package, as part of worker.py.
"""

import gc
import re

import numpy as np
from runtimes import compile_openvino  # beside this file, whose folder is searched


def probe(kind, model, sessions, threads, inputs):
    """Open sessions of a model one after another, and run each once, so that all is allocated.

    ``inputs`` maps names to shapes. Returns the reply: ``version``, and ``steps``, the memory
    before the first session and after each of them, as {"anonymous", "file_backed"} in bytes.
    """
    open_session = OPENERS[kind]
    warm(kind)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in inputs.items()}
    gc.collect()
    steps, live = [memory()], []
    for _ in range(sessions):
        version, run = open_session(model, threads, inputs)
        run(zeros)
        live.append(run)
        gc.collect()
        steps.append(memory())
    return {"version": version, "steps": steps}


def memory():
    """Anonymous pages, which are this process's own, and pages of files, which others may share."""
    with open("/proc/self/smaps_rollup") as file:
        found = dict(re.findall(r"^(\w+): +(\d+) kB", file.read(), re.MULTILINE))
    anonymous = int(found["Anonymous"]) << 10
    return {"anonymous": anonymous, "file_backed": (int(found["Rss"]) << 10) - anonymous}


def warm(kind):
    """Load the packages: what they take is not the model's."""
    names = {"ort": ["onnxruntime"], "fanin": ["onnxruntime", "fanin.deploy"]}
    for name in names.get(kind, [kind]):
        __import__(name)
    if kind == "fanin":
        import fanin.ort_ops

        fanin.ort_ops.get_library_path()


def open_ort(model, threads, inputs):  # noqa: ARG001
    """Stock ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return f"onnxruntime {onnxruntime.__version__}", lambda x: session.run(None, x)


def open_fanin(model, threads, inputs):  # noqa: ARG001
    """ONNX Runtime with fanin's library."""
    import onnxruntime

    from fanin.deploy import open_session

    session = open_session(model, threads=threads)
    return f"onnxruntime {onnxruntime.__version__}", lambda x: session.run(None, x)


def open_openvino(model, threads, inputs):
    """OpenVINO, held to float32."""
    compiled, version = compile_openvino(model, dict(inputs), threads, "f32")
    return version, compiled


def open_deepsparse(model, threads, inputs):
    """DeepSparse."""
    import deepsparse

    batch = next(iter(inputs.values()))[0]
    engine = deepsparse.Engine(model, batch_size=batch, num_cores=threads)
    return f"deepsparse {deepsparse.__version__}", lambda x: engine.run(list(x.values()))


OPENERS = {
    "deepsparse": open_deepsparse,
    "fanin": open_fanin,
    "openvino": open_openvino,
    "ort": open_ort,
}
