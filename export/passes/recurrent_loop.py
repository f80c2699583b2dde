"""Write LSTM and GRU as a Scan over their steps, with the projection of X before it.

The products are MatMul and Gemm of the source's weights, which become condensed as any other.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .access import graph_of, input_of, label_of
from .builder import Builder, Size
from .nodes import Names, dimensions_of, take_output
from .origins import name_part, part_of
from .recurrent import Recurrent, Stored

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def write_loop(layer: Recurrent, names: Names) -> None:
    """Replace a recurrent operator by one loop for each direction."""
    _Loops(layer, names).write()


class _Loops:
    def __init__(self, layer: Recurrent, names: Names) -> None:
        self.layer, self.names, self.node = layer, names, layer.node
        self.kind = layer.node.op_type
        prefix = label_of(self.node) or self.kind.lower()
        graph = graph_of(self.node)
        self.outer = Builder(graph, self.node.prepend, names, prefix, self.kind)
        self.prefix = prefix
        x = input_of(self.node, 0)
        sizes = dimensions_of(x) or [None, None, layer.inputs]
        if layer.batch_first:
            sizes = [sizes[1], sizes[0], sizes[2]]
            x = self.outer.add("Transpose", x, shape=sizes, perm=[1, 0, 2])
        self.x = x
        self.steps = sizes[0]
        # What is added in a step is known to be as large only where the batch has a name.
        self.batch = names.free(f"{prefix}_batch") if sizes[1] is None else sizes[1]
        self.hidden = layer.hidden
        self.state: list[Size] = [self.batch, self.hidden]

    def write(self) -> None:
        layer, node = self.layer, self.node
        states = 2 if self.kind == "LSTM" else 1
        used = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
        used += [False] * (1 + states - len(used))
        valid = self._valid()
        done = [self._direction(d, valid, used[0]) for d in range(len(layer.reverse))]
        started = self._started()
        if started is not None:
            zero = self.outer.constant("zero", np.zeros((), np.float32))
            for one in done:
                for s in range(states):
                    one[s] = self.outer.add("Where", started, one[s], zero, shape=self.state)
        # Of each state by direction, then of the sequence.
        ends = [self._stacked([one[s] for one in done]) for s in range(states)]
        new = [self._sequence([one[states] for one in done])] if used[0] else [None]
        for old, value in zip(node.outputs, [*new, *ends], strict=False):
            if value is not None and (old.uses() or old.is_graph_output()):
                take_output(old, value)
        graph_of(node).remove(node, safe=True)

    def _direction(self, d: int, valid: ir.Value | None, whole: bool) -> list[ir.Value]:
        """Write one direction; returns its last states, and the sequence if it is needed."""
        layer, rows = self.layer, self.layer.gates * self.hidden
        inner_bias, outer_bias = self._biases(d)
        w = self._weight(layer.projections[d], d, layer.inputs)
        turned = self.outer.add("Transpose", w, shape=[layer.inputs, rows], perm=[1, 0])
        shape = [self.steps, self.batch, rows]
        part = layer.part(d)
        label = f"{part}_input" if part else "input"
        projected = self.outer.add("MatMul", self.x, turned, shape=shape, label=label)
        bias = self.outer.constant("bias", outer_bias)
        projected = self.outer.add("Add", projected, bias, shape=shape)
        states = [self._initial(5, d)]
        if self.kind == "LSTM":
            states.append(self._initial(6, d))
        sequences = [projected] if valid is None else [projected, valid]
        body = self._body(d, inner_bias, valid is not None, whole)
        backward = int(layer.reverse[d])
        shapes = [self.state] * len(states)
        if whole:
            shapes.append([self.steps, *self.state])
        scan = self.outer.node(
            "Scan",
            *states,
            *sequences,
            shapes=shapes,
            num_scan_inputs=len(sequences),
            body=body,
            label=part or "loop",
            scan_input_directions=[backward] * len(sequences),
            scan_output_directions=[backward] * whole,
        )
        return list(scan.outputs)

    def _weight(self, stored: Stored, d: int, columns: int) -> ir.Value:
        """Take the matrix of a direction out of a stored weight."""
        shape, value = [1, self.layer.gates * self.hidden, columns], stored.value
        axis = self.outer.integers("axis", 0)
        if stored.at is not None:
            bounds = [self.outer.integers("at", stored.at + end) for end in (0, 1)]
            value = self.outer.add("Slice", value, *bounds, axis, shape=shape)
        matrix = self.outer.add("Squeeze", value, axis, shape=shape[1:])
        if stored.at is not None:
            name_part(matrix, self.layer.part(d))
        return matrix

    def _biases(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what is added inside and outside of the loop."""
        given = self.layer.bias[d].astype(np.float32)
        outer, inner = given.reshape(2, -1).copy()
        if self.kind == "GRU" and self.layer.resets_last:
            # The reset gate multiplies the last third.
            outer[: 2 * self.hidden] += inner[: 2 * self.hidden]
            inner[: 2 * self.hidden] = 0
            return inner, outer
        return np.zeros_like(inner), outer + inner

    def _initial(self, position: int, d: int) -> ir.Value:
        given = self.layer.input(position)
        if given is None:
            return self.outer.add("ConstantOfShape", self._state_sizes(), shape=self.state)
        place = 1 if self.layer.batch_first else 0
        axis = self.outer.integers("axis", place)
        if len(self.layer.reverse) > 1:
            shape: list[Size] = list(self.state)
            shape.insert(place, 1)
            bounds = [self.outer.integers("at", d + end) for end in (0, 1)]
            given = self.outer.add("Slice", given, *bounds, axis, shape=shape)
        return self.outer.add("Squeeze", given, axis, shape=self.state)

    def _state_sizes(self) -> ir.Value:
        if isinstance(self.batch, int):
            return self.outer.integers("sizes", self.batch, self.hidden)
        batch = self.outer.add("Shape", self.x, shape=[1], kind=_INT64, start=1, end=2)
        width = self.outer.integers("hidden", self.hidden)
        return self.outer.add("Concat", batch, width, shape=[2], kind=_INT64, axis=0)

    def _valid(self) -> ir.Value | None:
        """Tell the steps of each sample apart from what follows its end: ``[T, B, 1]``."""
        lengths = self.layer.input(4)
        if lengths is None:
            return None
        add, constant = self.outer.add, self.outer.constant
        first = self.outer.integers("axis", 0)
        count = add("Shape", self.x, shape=[1], kind=_INT64, start=0, end=1)
        count = add("Squeeze", count, first, shape=[], kind=_INT64)
        bounds = [constant(name, np.array(at, np.int64)) for name, at in (("from", 0), ("by", 1))]
        steps = add("Range", bounds[0], count, bounds[1], shape=[self.steps], kind=_INT64)
        column = self.outer.integers("axis", 1)
        steps = add("Unsqueeze", steps, column, shape=[self.steps, 1], kind=_INT64)
        lengths = add("Cast", lengths, shape=[self.batch], kind=_INT64, to=_INT64)
        valid = add("Less", steps, lengths, shape=[self.steps, self.batch], kind=_BOOL)
        last = self.outer.integers("axis", 2)
        return add("Unsqueeze", valid, last, shape=[self.steps, self.batch, 1], kind=_BOOL)

    def _started(self) -> ir.Value | None:
        """Tell samples without any step apart, whose last states are zero: ``[B, 1]``."""
        lengths = self.layer.input(4)
        if lengths is None or self.layer.input(5) is self.layer.input(6) is None:
            return None
        lengths = self.outer.add("Cast", lengths, shape=[self.batch], kind=_INT64, to=_INT64)
        none = self.outer.constant("none", np.array(0, np.int64))
        some = self.outer.add("Greater", lengths, none, shape=[self.batch], kind=_BOOL)
        last = self.outer.integers("axis", 1)
        return self.outer.add("Unsqueeze", some, last, shape=[self.batch, 1], kind=_BOOL)

    def _body(self, d: int, bias: np.ndarray, masked: bool, whole: bool) -> ir.Graph:
        rows = self.layer.gates * self.hidden
        part = self.layer.part(d)
        prefix = f"{self.prefix}_{part}_step" if part else f"{self.prefix}_step"
        graph = ir.Graph([], [], nodes=[], name=self.names.free(prefix))
        step = Builder(graph, graph.append, self.names, prefix, self.kind)
        weight = self._weight(self.layer.recurrent[d], d, self.hidden)
        before = [step.value("h", self.state)]
        if self.kind == "LSTM":
            before.append(step.value("c", self.state))
        x = step.value("x", [self.batch, rows])
        graph.inputs.extend([*before, x])
        if self.kind == "LSTM":
            after = self._lstm_step(step, weight, before, x)
        else:
            after = self._gru_step(step, weight, before[0], x, bias)
        y = after[0]
        if masked:
            valid = step.value("valid", [self.batch, 1], _BOOL)
            graph.inputs.append(valid)
            after = [
                step.add("Where", valid, new, old, shape=self.state)
                for new, old in zip(after, before, strict=True)
            ]
            if whole:
                zero = step.constant("zero", np.zeros((), np.float32))
                y = step.add("Where", valid, y, zero, shape=self.state)
        graph.outputs.extend(after)
        if whole:
            # A value can be an output once.
            same = y is after[0]
            graph.outputs.append(step.add("Identity", y, shape=self.state) if same else y)
        return graph

    def _lstm_step(
        self, step: Builder, weight: ir.Value, before: list[ir.Value], x: ir.Value
    ) -> list[ir.Value]:
        h, c = before
        shape, three = self.state, [self.batch, 3 * self.hidden]
        four = [self.batch, 4 * self.hidden]
        sums = step.add("Gemm", h, weight, x, shape=four, transB=1, label="recurrent")
        # Gates lie in the order input, output, forget, cell.
        sizes = step.integers("sizes", 3 * self.hidden, self.hidden)
        sigmoids, cell = step.node("Split", sums, sizes, shapes=[three, shape], axis=-1).outputs
        gates = step.add("Sigmoid", sigmoids, shape=three)
        thirds = step.integers("sizes", *[self.hidden] * 3)
        split = step.node("Split", gates, thirds, shapes=[shape] * 3, axis=-1)
        i, o, f = split.outputs
        new = step.add("Tanh", cell, shape=shape)
        kept = step.add("Mul", f, c, shape=shape)
        taken = step.add("Mul", i, new, shape=shape)
        c = step.add("Add", kept, taken, shape=shape)
        h = step.add("Mul", o, step.add("Tanh", c, shape=shape), shape=shape)
        return [h, c]

    def _gru_step(
        self, step: Builder, weight: ir.Value, h: ir.Value, x: ir.Value, bias: np.ndarray
    ) -> list[ir.Value]:
        shape, two = self.state, [self.batch, 2 * self.hidden]
        sizes = step.integers("sizes", 2 * self.hidden, self.hidden)
        # Gates lie in the order update, reset, hidden.
        x_gates, x_new = step.node("Split", x, sizes, shapes=[two, shape], axis=-1).outputs
        if self.layer.resets_last:
            three = [self.batch, 3 * self.hidden]
            constant = step.constant("bias", bias)
            sums = step.add("Gemm", h, weight, constant, shape=three, transB=1, label="recurrent")
            split = step.node("Split", sums, sizes, shapes=[two, shape], axis=-1)
            gates = step.add("Add", split.outputs[0], x_gates, shape=two)
        else:
            of_gates, of_new = self._gate_weights(weight)
            gates = step.add("Gemm", h, of_gates, x_gates, shape=two, transB=1, label="gates")
        gates = step.add("Sigmoid", gates, shape=two)
        halves = step.integers("sizes", self.hidden, self.hidden)
        z, r = step.node("Split", gates, halves, shapes=[shape] * 2, axis=-1).outputs
        if self.layer.resets_last:
            new = step.add("Mul", r, split.outputs[1], shape=shape)
            new = step.add("Add", new, x_new, shape=shape)
        else:
            reset = step.add("Mul", r, h, shape=shape)
            new = step.add("Gemm", reset, of_new, x_new, shape=shape, transB=1, label="hidden")
        new = step.add("Tanh", new, shape=shape)
        change = step.add("Mul", z, step.add("Sub", h, new, shape=shape), shape=shape)
        return [step.add("Add", new, change, shape=shape)]

    def _gate_weights(self, weight: ir.Value) -> list[ir.Value]:
        """Cut R into the rows of both gates and those of the hidden state."""
        bounds = [0, 2 * self.hidden, 3 * self.hidden]
        part = part_of(weight)
        pieces = []
        for name, start, end in zip(("gates", "hidden"), bounds, bounds[1:], strict=False):
            ends = [self.outer.integers("at", at) for at in (start, end)]
            axis = self.outer.integers("axis", 0)
            shape = [end - start, self.hidden]
            piece = self.outer.add("Slice", weight, *ends, axis, shape=shape)
            name_part(piece, f"{part}, {name}" if part else name)
            pieces.append(piece)
        return pieces

    def _stacked(self, states: list[ir.Value]) -> ir.Value:
        axis = 1 if self.layer.batch_first else 0
        shape: list[Size] = list(self.state)
        shape.insert(axis, 1)
        axes = self.outer.integers("axes", axis)
        parts = [self.outer.add("Unsqueeze", state, axes, shape=shape) for state in states]
        if len(parts) == 1:
            return parts[0]
        shape[axis] = len(parts)
        return self.outer.add("Concat", *parts, shape=shape, axis=axis)

    def _sequence(self, sequences: list[ir.Value]) -> ir.Value:
        axes = self.outer.integers("axes", 1)
        shape = [self.steps, 1, *self.state]
        parts = [self.outer.add("Unsqueeze", one, axes, shape=shape) for one in sequences]
        whole = parts[0]
        if len(parts) > 1:
            shape = [self.steps, len(parts), *self.state]
            whole = self.outer.add("Concat", *parts, shape=shape, axis=1)
        if self.layer.batch_first:
            turned = [shape[2], shape[0], shape[1], shape[3]]
            whole = self.outer.add("Transpose", whole, shape=turned, perm=[2, 0, 1, 3])
        return whole
