"""Stands in for DeepSparse: ONNX Runtime under its interface, its share of operators made up."""

import os

import onnxruntime

__version__ = "0.0"


class Engine:
    def __init__(self, model, batch_size, num_cores):  # noqa: ARG002
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(model, providers=providers)
        self._name = self._session.get_inputs()[0].name
        self.num_cores = num_cores
        self.fraction_of_supported_ops = float(os.environ.get("FAKE_SUPPORTED", "1"))

    def run(self, arrays, val_inp=True):  # noqa: ARG002
        return self._session.run(None, {self._name: arrays[0]})
