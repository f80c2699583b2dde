"""Random convolutional networks, made as a graph and computed by torch in float64 at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional as F

UNARY = {
    "Relu": torch.relu,
    "HardSwish": F.hardswish,
    "Sigmoid": torch.sigmoid,
    "LeakyRelu": lambda x: F.leaky_relu(x, 0.01),
}


class ConvNet:
    """A network under construction; ``name`` and ``value`` are its last value."""

    def __init__(self, seed: int, channels: int = 5, size: Sequence[int] = (9, 8)) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.x = self.rng.standard_normal((2, channels, *size)).astype(np.float32)
        self.name, self.value = "x", torch.from_numpy(self.x).double()
        self.past: list[tuple[str, Tensor]] = []

    @property
    def channels(self) -> int:
        return self.value.shape[1]

    def constant(self, array: np.ndarray) -> tuple[str, Tensor]:
        name = f"c{len(self.arrays)}"
        self.arrays[name] = np.ascontiguousarray(array, np.float32)
        return name, torch.from_numpy(self.arrays[name]).double()

    def emit(self, op: str, inputs: list[str], value: Tensor, **attributes) -> None:
        self.past.append((self.name, self.value))
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attributes)
        )
        self.name, self.value = name, value

    def conv(
        self,
        out: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        pad: int | None = None,
        dilation: int = 1,
        group: int = 1,
        ablated: float = 0.0,
        density: float = 0.3,
        bias: bool = True,
    ) -> None:
        pad = kernel // 2 * dilation if pad is None else pad
        reach = (kernel - 1) * dilation + 1
        if min(self.value.shape[2:], default=0) + 2 * pad < reach:
            kernel, pad, dilation = 1, 0, 1
        shape = (out, self.channels // group, kernel, kernel)
        mask = self.rng.random(shape) < density
        mask[:, 0, 0, 0] = True
        mask[self.rng.random(out) < ablated] = False
        name, weight = self.constant(self.rng.standard_normal(shape) * mask)
        inputs, offset = [self.name, name], None
        if bias:
            bias_name, offset = self.constant(self.rng.standard_normal(out))
            inputs.append(bias_name)
        value = F.conv2d(self.value, weight, offset, stride, pad, dilation, group)
        self.emit(
            "Conv",
            inputs,
            value,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            dilations=[dilation, dilation],
            group=group,
        )

    def batch_norm(self) -> None:
        width = self.channels
        names, parts = zip(
            *(
                self.constant(array)
                for array in (
                    self.rng.uniform(0.5, 1.5, width) * self.rng.choice([-1, 1], width),
                    self.rng.standard_normal(width),
                    self.rng.standard_normal(width),
                    self.rng.uniform(0.5, 1.5, width),
                )
            ),
            strict=True,
        )
        scale, shift, mean, var = parts
        value = F.batch_norm(self.value, mean, var, scale, shift)
        self.emit("BatchNormalization", [self.name, *names], value)

    def per_channel(self, op: str) -> None:
        size = self.channels if self.rng.random() < 0.7 else 1
        name, constant = self.constant(self.rng.standard_normal((size, 1, 1)))
        value = self.value + constant if op == "Add" else self.value * constant
        self.emit(op, [self.name, name], value)

    def unary(self, op: str) -> None:
        attributes = {"alpha": 0.01} if op == "LeakyRelu" else {}
        self.emit(op, [self.name], UNARY[op](self.value), **attributes)

    def relu6(self) -> None:
        low, high = self.constant(np.array(0.0))[0], self.constant(np.array(6.0))[0]
        self.emit("Clip", [self.name, low, high], self.value.clamp(0, 6))

    def residual(self) -> None:
        """Add the oldest value of the same shape that there is."""
        for name, value in self.past:
            if value.shape == self.value.shape:
                self.emit("Add", [self.name, name], self.value + value)
                return

    def concat(self) -> None:
        name, value = self.past[-1] if self.past else (self.name, self.value)
        if value.shape[2:] == self.value.shape[2:]:
            joined = torch.cat([self.value, value], 1)
            self.emit("Concat", [self.name, name], joined, axis=1)

    def max_pool(self, pad: int = 1) -> None:
        if min(self.value.shape[2:]) >= 3:
            self.emit(
                "MaxPool",
                [self.name],
                F.max_pool2d(self.value, 3, 2, pad),
                kernel_shape=[3, 3],
                strides=[2, 2],
                pads=[pad] * 4,
            )

    def average_pool(self, pad: int = 1, counted: bool = True) -> None:
        if min(self.value.shape[2:]) >= 3:
            self.emit(
                "AveragePool",
                [self.name],
                F.avg_pool2d(self.value, 3, 1, pad, count_include_pad=counted),
                kernel_shape=[3, 3],
                pads=[pad] * 4,
                count_include_pad=int(counted),
            )

    def global_average(self) -> None:
        self.emit("GlobalAveragePool", [self.name], self.value.mean((2, 3), keepdim=True))

    def head(self, out: int = 4, *, matmul: bool = False) -> None:
        self.emit("Flatten", [self.name], self.value.flatten(1))
        shape = (out, self.value.shape[1])
        name, weight = self.constant(self.rng.standard_normal(shape))
        bias_name, bias = self.constant(self.rng.standard_normal(out))
        value = self.value @ weight.T
        if matmul:
            self.arrays[name] = np.ascontiguousarray(self.arrays[name].T)
            self.emit("MatMul", [self.name, name], value)
            self.emit("Add", [self.name, bias_name], value + bias)
        else:
            self.emit("Gemm", [self.name, name, bias_name], value + bias, transB=1)

    def model(self, *, batch: int | str = "batch") -> onnx.ModelProto:
        def port(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape[1:]])

        graph = helper.make_graph(
            self.nodes,
            "net",
            [port("x", self.x.shape)],
            [port(self.name, self.value.shape)],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)
