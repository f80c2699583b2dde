"""Layers and models in other runtimes, as worker.py runs them.

Runs under any Python from 3.8 on that has NumPy and the engine's package. Each kind is made of the
worker's ``layer`` (``shape`` of the input, and what the kind reads) and a number of threads.
"""

import numpy as np


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


class Torch:
    """``arrays``: of each kind below, which defines ``compute``, from tensor to tensor."""

    def __init__(self, layer, threads):
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        with np.load(layer["arrays"]) as arrays:
            self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self.torch = torch
        self.version = f"torch {torch.__version__}"
        self.threads = torch.get_num_threads()

    def compile(self):
        """Compile with all that inductor has: tuned templates, constant weights to repack."""
        import torch._inductor.config as inductor

        inductor.freezing = True
        inductor.compile_threads = 1  # here: its pool of processes would outlive the compilation
        mode = "max-autotune-no-cudagraphs"
        self.compute = self.torch.compile(self.compute, mode=mode, dynamic=False)

    def run(self, x):
        """One call of the layer."""
        return self.compute(self.torch.from_numpy(x))


class TorchCsr(Torch):
    """As ScipyCsr; torch hands float32 CSR products to MKL where it is built with it."""

    def __init__(self, layer, threads):
        super().__init__(layer, threads)
        self._weight = self.torch.sparse_csr_tensor(
            *(self.arrays[name] for name in ("indptr", "indices", "data")),
            size=tuple(self.arrays["shape"].tolist()),
        )
        self._bias = self.arrays["bias"]
        self._columns = layer["columns"]
        mkl = "MKL" if self.torch.backends.mkl.is_available() else "without MKL"
        self.version += f" ({mkl})"

    def compute(self, x):
        """One product with a vector, or with a matrix of columns."""
        if x.shape[0] == 1 and not self._columns:
            return self.torch.addmv(self._bias, self._weight, x[0])
        y = self.torch.addmm(self._bias[:, None], self._weight, x if self._columns else x.t())
        return y if self._columns else y.t().contiguous()


class TorchDense(Torch):
    """``arrays``: weight and bias. With ``compile``, by torch.compile for this very shape."""

    def __init__(self, layer, threads):
        super().__init__(layer, threads)
        weight, bias = self.arrays["weight"], self.arrays["bias"]
        linear = self.torch.nn.functional.linear
        self.compute = lambda x: linear(x, weight, bias)
        if layer["compile"]:
            self.compile()


class TorchGather(Torch):
    """``arrays``: values, indices, rows, bias, of the paper's condensed form; compiled."""

    def __init__(self, layer, threads):
        super().__init__(layer, threads)
        values, indices, rows, bias = (
            self.arrays[name] for name in ("values", "indices", "rows", "bias")
        )
        all_rows = len(rows) == len(bias)

        def condensed(x):
            sums = (x[:, indices] * values).sum(-1)
            if all_rows:
                return sums + bias
            y = bias.expand(len(x), -1).clone()
            y[:, rows] += sums
            return y

        self.compute = condensed
        self.compile()


class OpenVino:
    """``model``: an ONNX file of one input. ``precision``: such as f32; None is its own choice."""

    def __init__(self, layer, threads):
        import openvino

        compiled, self.version = compile_openvino(
            layer["model"], layer["shape"], threads, layer["precision"]
        )
        self._tensor = openvino.Tensor
        self._bound = None
        self._request = compiled.create_infer_request()
        self.threads = compiled.get_property("INFERENCE_NUM_THREADS")

    def run(self, x):
        """Infer on the array itself, which is bound once; the output tensor is OpenVINO's own."""
        if self._bound is not x:
            self._request.set_input_tensor(self._tensor(x, shared_memory=True))
            self._bound = x
        self._request.infer()
        return self._request.get_output_tensor().data


def compile_openvino(path, shapes, threads, precision):
    """Compile a model for its input's shape, or shapes by name; returns it and the version.

    ``precision`` None leaves it to the plugin; else another one in use is a RuntimeError.
    """
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape(shapes)
    compiled = core.compile_model(model, "CPU", settings)
    in_use = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if precision not in (None, in_use):
        raise RuntimeError(f"computes in {in_use}, not in {precision}")
    return compiled, f"openvino {openvino.__version__.split('-')[0]}, in {in_use}"


KINDS = {
    "deepsparse": DeepSparse,
    "openvino": OpenVino,
    "scipy-csr": ScipyCsr,
    "torch": TorchDense,
    "torch-csr": TorchCsr,
    "torch-gather": TorchGather,
}
