"""What sessions of a model take in memory, told by the process that holds them.

Runs under any Python from 3.8 on that has NumPy and the engine's package. One argument, a JSON
object: ``kind``, ``model``, ``sessions``, ``threads``, ``inputs`` (name → shape). Prints a JSON
object: ``version``, and ``steps``, the memory before the first session and after each of them has
run once, as {"anonymous", "file_backed"} in bytes; or ``error``.
"""

import gc
import json
import os
import re
import sys

import numpy as np


def memory():
    """Anonymous pages, which are this process's own, and pages of files, which others may share."""
    with open("/proc/self/smaps_rollup") as file:
        found = dict(re.findall(r"^(\w+): +(\d+) kB", file.read(), re.MULTILINE))
    anonymous = int(found["Anonymous"]) << 10
    return {"anonymous": anonymous, "file_backed": (int(found["Rss"]) << 10) - anonymous}


def open_ort(request):
    """Stock ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    session = onnxruntime.InferenceSession(
        request["model"], options, providers=["CPUExecutionProvider"]
    )
    return f"onnxruntime {onnxruntime.__version__}", lambda inputs: session.run(None, inputs)


def open_fanin(request):
    """ONNX Runtime with fanin's library."""
    import onnxruntime

    from fanin.deploy import open_session

    session = open_session(request["model"], threads=request["threads"])
    return f"onnxruntime {onnxruntime.__version__}", lambda inputs: session.run(None, inputs)


def open_openvino(request):
    """OpenVINO, held to float32."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": request["threads"]}
    core = openvino.Core()
    model = core.read_model(request["model"])
    model.reshape(dict(request["inputs"]))
    compiled = core.compile_model(model, "CPU", {**settings, "NUM_STREAMS": 1})
    return f"openvino {openvino.__version__.split('-')[0]}", compiled


def open_deepsparse(request):
    """DeepSparse."""
    import deepsparse

    shapes = list(request["inputs"].values())
    engine = deepsparse.Engine(
        request["model"], batch_size=shapes[0][0], num_cores=request["threads"]
    )
    return f"deepsparse {deepsparse.__version__}", lambda inputs: engine.run(list(inputs.values()))


KINDS = {
    "deepsparse": open_deepsparse,
    "fanin": open_fanin,
    "openvino": open_openvino,
    "ort": open_ort,
}


def warm(kind):
    """Load the packages: what they take is not the model's."""
    names = {"ort": ["onnxruntime"], "fanin": ["onnxruntime", "fanin.deploy"]}
    for name in names.get(kind, [kind]):
        __import__(name)
    if kind == "fanin":
        import fanin.ort_ops

        fanin.ort_ops.get_library_path()


def probe(request):
    """Open the sessions one after another; each runs once, so that all that it takes is there."""
    warm(request["kind"])
    inputs = {name: np.zeros(shape, np.float32) for name, shape in request["inputs"].items()}
    gc.collect()
    steps, live = [memory()], []
    for _ in range(request["sessions"]):
        version, run = KINDS[request["kind"]](request)
        run(inputs)
        live.append(run)
        gc.collect()
        steps.append(memory())
    return {"version": version, "steps": steps}


def main():
    """Print the reply on a descriptor of its own: native code may print, too."""
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        result = probe(json.loads(sys.argv[1]))
    except Exception as error:  # whatever an engine raises is its reason to be left out
        result = {"error": f"{type(error).__name__}: {error}"}
    reply.write(json.dumps(result))
    reply.close()


if __name__ == "__main__":
    main()
