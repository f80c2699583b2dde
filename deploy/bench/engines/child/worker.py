"""One engine in a process of its own, which times its own runs; remote.py is the other end.

Runs by path under any Python from 3.8 on that has NumPy and the engine's package: DeepSparse lives
in an environment where fanin cannot. Protocol: one JSON object a line on stdin, one on stdout back,
which holds ``error`` when the request failed and ``missing`` when a package is not there.

{"do": "prepare", "kind", "threads", "x", "layer", "null"} -> {"version", "threads", "call_seconds"}
{"do": "run", "lead_in", "count", "numbers", "condition"}  -> {"nanoseconds": [...]}
{"do": "output", "file"}                                   -> {"shape", "dtype"}

Inputs come through the mapped file ``x``, outputs go into ``file``; both are raw numbers. ``layer``
and ``null`` (a layer too small to matter, whose run is the cost of a call) have the input's
``shape`` and what the kind needs.
"""

import gc
import json
import os
import sys
import time
from statistics import median

import numpy as np
from conditions import Conditions, wait_until_quiet  # beside this file, whose folder is searched

_NULL_CALLS = 300


class DeepSparse:
    """``model``: an ONNX file of opset 18 at most, of static shape."""

    def __init__(self, layer, threads):
        import deepsparse

        self._engine = deepsparse.Engine(
            layer["model"], batch_size=layer["shape"][0], num_cores=threads
        )
        edition = "Neural Magic DeepSparse Community License: no production use"
        own = self._engine.fraction_of_supported_ops
        self.version = (
            f"deepsparse {deepsparse.__version__} ({edition}), {own:.0%} of the operators its own"
        )
        self.threads = self._engine.num_cores

    def run(self, x):
        """Without the checks of the input that Engine.run makes by default."""
        return self._engine.run([x], val_inp=False)[0]


class ScipyCsr:
    """``arrays``: an .npz of data, indices, indptr, bias; ``columns``: x is [in, batch]."""

    def __init__(self, layer, threads):  # noqa: ARG002 (SciPy has one thread, whatever is asked)
        import scipy
        from scipy import sparse

        arrays = np.load(layer["arrays"])
        self._weight = sparse.csr_matrix(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"])
        )
        self._bias = arrays["bias"]
        self._columns = layer["columns"]
        self.version = f"scipy {scipy.__version__}"
        self.threads = 1

    def run(self, x):
        """One product with a vector, or with a matrix of columns."""
        if x.shape[0] == 1 and not self._columns:
            return self._weight @ x[0] + self._bias
        y = self._weight @ (x if self._columns else x.T)
        y += self._bias[:, None]
        return y if self._columns else np.ascontiguousarray(y.T)


class TorchCsr:
    """As ScipyCsr; torch hands float32 CSR products to MKL where it is built with it."""

    def __init__(self, layer, threads):
        torch = _torch(threads)
        arrays = np.load(layer["arrays"])
        # int32 indices: MKL takes no others here, and torch would convert int64 in each call.
        self._weight = torch.sparse_csr_tensor(
            *(torch.from_numpy(arrays[name]) for name in ("indptr", "indices", "data")),
            size=tuple(arrays["shape"]),
        )
        self._bias = torch.from_numpy(arrays["bias"])
        self._columns = layer["columns"]
        self._torch = torch
        mkl = "MKL" if torch.backends.mkl.is_available() else "without MKL"
        self.version = f"torch {torch.__version__} ({mkl})"
        self.threads = torch.get_num_threads()

    def run(self, x):
        """One product with a vector, or with a matrix of columns."""
        x = self._torch.from_numpy(x)
        if x.shape[0] == 1 and not self._columns:
            return self._torch.addmv(self._bias, self._weight, x[0])
        y = self._torch.addmm(self._bias[:, None], self._weight, x if self._columns else x.t())
        return y if self._columns else y.t().contiguous()


class TorchDense:
    """``arrays``: weight and bias. With ``compile``, by torch.compile for this very shape."""

    def __init__(self, layer, threads):
        torch = _torch(threads)
        arrays = np.load(layer["arrays"])
        weight, bias = (torch.from_numpy(arrays[name]) for name in ("weight", "bias"))

        def linear(x):
            return torch.nn.functional.linear(x, weight, bias)

        self._run = _compiled(torch, linear) if layer["compile"] else linear
        self._torch = torch
        self.version = f"torch {torch.__version__}"
        self.threads = torch.get_num_threads()

    def run(self, x):
        """One call of the linear layer."""
        return self._run(self._torch.from_numpy(x))


class TorchGather:
    """``arrays``: values, indices, rows, bias, of the paper's condensed form; compiled."""

    def __init__(self, layer, threads):
        torch = _torch(threads)
        arrays = np.load(layer["arrays"])
        values, bias = (torch.from_numpy(arrays[name]) for name in ("values", "bias"))
        indices, rows = (
            torch.from_numpy(arrays[name].astype(np.int64)) for name in ("indices", "rows")
        )
        all_rows = len(rows) == len(bias)

        def condensed(x):
            sums = (x[:, indices] * values).sum(-1)
            if all_rows:
                return sums + bias
            y = bias.expand(len(x), -1).clone()
            y[:, rows] += sums
            return y

        self._run = _compiled(torch, condensed)
        self._torch = torch
        self.version = f"torch {torch.__version__}"
        self.threads = torch.get_num_threads()

    def run(self, x):
        """One call of the condensed layer."""
        return self._run(self._torch.from_numpy(x))


def _torch(threads):
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def _compiled(torch, function):
    """Compile with all that inductor has: tuned templates, weights as constants it may repack."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    inductor.compile_threads = 1  # here: its pool of processes would outlive the compilation
    return torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)


class OpenVino:
    """``model``: an ONNX file of one input. ``precision``: such as f32; None is its own choice."""

    def __init__(self, layer, threads):
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if layer["precision"]:
            settings["INFERENCE_PRECISION_HINT"] = layer["precision"]
        core = openvino.Core()
        model = core.read_model(layer["model"])
        model.reshape(layer["shape"])
        compiled = core.compile_model(model, "CPU", settings)
        in_force = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if layer["precision"] not in (None, in_force):
            raise RuntimeError(f"computes in {in_force}, not in {layer['precision']}")
        self._tensor = openvino.Tensor
        self._bound = None
        self._request = compiled.create_infer_request()
        self.version = f"openvino {openvino.__version__.split('-')[0]}, in {in_force}"
        self.threads = compiled.get_property("INFERENCE_NUM_THREADS")

    def run(self, x):
        """Infer on the array itself, which is bound once; the output tensor is OpenVINO's own."""
        if self._bound is not x:
            self._request.set_input_tensor(self._tensor(x, shared_memory=True))
            self._bound = x
        self._request.infer()
        return self._request.get_output_tensor().data


KINDS = {
    "deepsparse": DeepSparse,
    "openvino": OpenVino,
    "scipy-csr": ScipyCsr,
    "torch": TorchDense,
    "torch-csr": TorchCsr,
    "torch-gather": TorchGather,
}


class Worker:
    """Answers the requests."""

    def prepare(self, request):
        """Load the layer, and time calls of the null layer."""
        kind, threads = KINDS[request["kind"]], request["threads"]
        null = kind(request["null"], threads)
        x = np.zeros(request["null"]["shape"], np.float32)
        calls = [self._timed(null, x) for _ in range(_NULL_CALLS)]
        layer = request["layer"]
        self._layer = kind(layer, threads)
        self._conditions = Conditions(threads)
        # Writable, since torch warns of arrays that are not; asarray sheds the subclass.
        self._x = np.asarray(np.memmap(request["x"], np.float32, "r+", shape=tuple(layer["shape"])))
        return {
            "version": self._layer.version,
            "threads": self._layer.threads,
            "call_seconds": median(calls) / 1e9,
        }

    def run(self, request):
        """Run untimed for ``lead_in`` seconds, then time ``count`` runs one by one.

        Two ``numbers`` take turns as the first of the input, the first one before the last run.
        """
        end = time.perf_counter() + request["lead_in"]
        while time.perf_counter() < end:
            self._timed(self._layer, self._x)
        numbers, times = request["numbers"], []
        gc.disable()
        try:
            for left in range(request["count"] - 1, -1, -1):
                if numbers:
                    self._x.flat[0] = numbers[left % 2]
                self._conditions.prepare(request["condition"])
                times.append(self._timed(self._layer, self._x))
        finally:
            gc.enable()
        if self._layer.threads > 1:
            wait_until_quiet()
        return {"nanoseconds": times}

    def output(self, request):
        """Write the output of the last run."""
        y = np.asarray(self._y)
        y.tofile(request["file"])
        return {"shape": y.shape, "dtype": str(y.dtype)}

    def _timed(self, layer, x):
        start = time.perf_counter_ns()
        self._y = layer.run(x)
        return time.perf_counter_ns() - start


def main():
    """Answer until stdin ends."""
    # Native code may print: the replies get a descriptor of their own, stdout becomes stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request["do"])(request)
        except ModuleNotFoundError as error:
            reply = {"error": str(error), "missing": error.name}
        except Exception as error:  # whatever an engine raises is its reason to be left out
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
