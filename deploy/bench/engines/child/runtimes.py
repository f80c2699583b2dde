"""Layers and models in other runtimes, as worker.py runs them.

Runs under any Python from 3.8 on that has NumPy and the engine's package. Each kind is made of the
worker's ``layer`` (``shape`` of the input, and what the kind reads) and a number of threads.
"""

import numpy as np

LEAST_OWN = 0.9
"""Share of a model that a runtime must compute as it claims to: of its operators with kernels of
its own (DeepSparse hands the others to ONNX Runtime), or of its layers in 8 bits."""


class Runtime:
    """What the kinds share."""

    def array(self, y):
        """Return what ``run`` returned as an array."""
        return np.asarray(y)


class DeepSparse(Runtime):
    """``model``: an ONNX file of opset 18 at most, of static shape.

    A RuntimeError unless it has kernels for nearly all of the model.
    """

    def __init__(self, layer, threads):
        import deepsparse

        self._engine = deepsparse.Engine(
            layer["model"], batch_size=layer["shape"][0], num_cores=threads
        )
        edition = "Neural Magic DeepSparse Community License: no production use"
        own = self._engine.fraction_of_supported_ops
        if own < LEAST_OWN:
            raise RuntimeError(
                f"DeepSparse has kernels for {own:.0%} of the operators, and hands the model to "
                f"its ONNX Runtime; at least {LEAST_OWN:.0%} must be its own"
            )
        self.version = (
            f"deepsparse {deepsparse.__version__} ({edition}), {own:.0%} of the operators its own"
        )
        self.threads = self._engine.num_cores

    def run(self, x):
        """Without the checks of the input that Engine.run makes by default."""
        return self._engine.run([x], val_inp=False)[0]


class ScipyCsr(Runtime):
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


class Torch(Runtime):
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


class TorchInt8(Torch):
    """``arrays``: int8 ``weight``, its ``scales`` and ``bias``. ``engine``: its library of kernels.

    ``grids``: scale and zero point of input and output, which are uint8 then; without them both
    are float32, and the input is quantized in each run.
    """

    def __init__(self, layer, threads):
        import warnings

        super().__init__(layer, threads)
        torch, arrays = self.torch, self.arrays
        warnings.simplefilter("ignore")  # quantized tensors are announced to go
        torch.backends.quantized.engine = layer["engine"]
        zeros = torch.zeros(len(arrays["scales"]), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(
            arrays["weight"], arrays["scales"].double(), zeros, 0
        )
        packed = torch.ops.quantized.linear_prepack(weight, arrays["bias"])
        self.version += f", kernels of {layer['engine']}"
        self._x_grid = None
        if layer["grids"]:
            self._x_grid, y_grid = layer["grids"]
            self.compute = lambda x: torch.ops.quantized.linear(x, packed, *y_grid)
        else:
            self.compute = lambda x: torch.ops.quantized.linear_dynamic(x, packed, False)
        self._bound = self._tensor = None

    def run(self, x):
        """One call of the layer on a tensor that shares the array's memory."""
        if self._bound is not x:
            self._tensor = tensor = self.torch.from_numpy(x)
            if self._x_grid:
                scale, zero_point = self._x_grid
                self._tensor = self.torch._empty_affine_quantized(
                    x.shape, scale=scale, zero_point=zero_point, dtype=self.torch.quint8
                )
                storage = tensor.untyped_storage()
                self._tensor.set_(storage, tensor.storage_offset(), x.shape, tensor.stride())
            self._bound = x
        return self.compute(self._tensor)

    def array(self, y):
        """Return the numbers of a quantized tensor."""
        return (y.int_repr() if y.is_quantized else y).numpy()


class OpenVino(Runtime):
    """``model``: an ONNX file of one input. ``precision``: such as f32; None is its own choice.

    With ``int8``, a RuntimeError unless it computes nearly all layers in 8 bits.
    """

    def __init__(self, layer, threads):
        import openvino

        compiled, self.version = compile_openvino(
            layer["model"], layer["shape"], threads, layer["precision"]
        )
        if layer.get("int8"):
            self.version += f", {_layers_in_int8(compiled)}"
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


def _layers_in_int8(compiled):
    """Say how many layers are computed in 8 bits; a RuntimeError if they are too few.

    The names of their kernels tell: a layer of 8-bit weights may still compute in float32.
    """
    kernels = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        if info["layerType"].value in ("FullyConnected", "Convolution"):
            kernels.append(info["primitiveType"].value)
    narrow = [kernel for kernel in kernels if kernel.upper().endswith("I8")]
    others = sorted(set(kernels) - set(narrow))
    text = f"{len(narrow)} of {len(kernels)} layers in 8 bits"
    if len(narrow) < LEAST_OWN * len(kernels) or not narrow:
        raise RuntimeError(f"OpenVINO computes {text}, the others by {', '.join(others)}")
    return f"{text} ({', '.join(sorted(set(narrow)))})"


KINDS = {
    "deepsparse": DeepSparse,
    "openvino": OpenVino,
    "scipy-csr": ScipyCsr,
    "torch": TorchDense,
    "torch-csr": TorchCsr,
    "torch-gather": TorchGather,
    "torch-int8": TorchInt8,
}
