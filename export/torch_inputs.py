"""The call of a torch model that an export traces: its inputs, and those that it is checked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from torch import Tensor, nn

from .errors import ExportError
from .torch_decoder import decoder_call, is_cache
from .torch_model import as_inputs, check_batches, run_cases

BATCH = "batch"
"""Name of the dynamic first dimension of every input."""

SEQUENCE = "sequence"
"""Name of the second dimension of token ids and what goes with them."""

_LONGEST_REASON = 200

Example = Tensor | Sequence[Any] | Mapping[str, Any]
"""Inputs in the order of a forward, or by their names."""

Shapes = Sequence[Mapping[int, str]] | Mapping[str, Mapping[int, str]]
"""Names of dynamic dimensions by axis, for each input in order, or by the names of inputs."""


@dataclass(frozen=True)
class Call:
    """How a model is traced and checked.

    Attributes:
        model: takes the inputs by position.
        inputs: that it is traced with; of a batch of at least two.
        dynamic_shapes: names of the dynamic dimensions of each.
        batches: inputs that the file is compared on.
        input_names, output_names: of the file; None leaves them to torch and to the order.
        optional: the name of a dimension that is dynamic where torch can, which the last of the
            batches has another length of; None where the user has chosen.
        notes: for the report.
        decodes: whether it is a language model with a cache.

    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    dynamic_shapes: tuple[dict[int, str], ...]
    batches: tuple[tuple[Tensor, ...], ...]
    input_names: tuple[str, ...] | None = None
    output_names: tuple[str, ...] | None = None
    optional: str | None = None
    notes: tuple[str, ...] = ()
    decodes: bool = False


def call_of(
    model: nn.Module, example: Example, dynamic_shapes: Shapes | None, *, widen: bool
) -> Call:
    """Prepare the call of a model that the example shows.

    Inputs by name become inputs by position. A cache among them makes a decoder of the model, see
    :func:`decoder_call`. Second dimensions of token ids are dynamic where the user names none.

    Args:
        model: the copy that is exported.
        example: tensors with a common first dimension, in order or by name.
        dynamic_shapes: what the user asks for; None for the default.
        widen: half-precision inputs become float32, as the model has.

    Raises:
        ExportError: the example does not fit the model's forward.
        ValueError: dynamic_shapes names other inputs than there are.

    """
    named = _by_name(model, example)
    if any(is_cache(value) for value in named.values()):
        if dynamic_shapes is not None:
            raise ValueError(
                "dynamic_shapes does not go with a cache: batch, sequence and past lengths are "
                "dynamic anyway; leave it out"
            )
        decoder = decoder_call(model, named)
        return Call(
            decoder.model,
            decoder.inputs,
            decoder.dynamic_shapes,
            decoder.batches,
            decoder.input_names,
            decoder.output_names,
            decodes=True,
        )
    names: tuple[str, ...] | None = None
    if isinstance(example, Mapping):
        names, example = tuple(named), tuple(named.values())
        model.__class__ = _called_by_name(type(model), names)
    inputs = as_inputs(example, widen)
    shapes, optional = _shapes(tuple(named), inputs, dynamic_shapes)
    call = Call(model, inputs, shapes, check_batches(inputs), names)
    if optional is None:
        return call
    shorter = _shorter(inputs, shapes, optional)
    dynamic = replace(call, batches=(*call.batches, shorter), optional=optional)
    try:
        run_cases(model, [inputs, shorter])
    except ExportError as error:
        # What fails on the example as well is no matter of its length.
        return static(dynamic, str(error))
    return dynamic


def static(call: Call, why: str) -> Call:
    """Make the optional dimension of a call constant; the reason goes into the report."""
    length = next(
        tensor.shape[axis]
        for tensor, shapes in zip(call.inputs, call.dynamic_shapes, strict=True)
        for axis, name in shapes.items()
        if name == call.optional
    )
    shapes = tuple(
        {axis: name for axis, name in one.items() if name != call.optional}
        for one in call.dynamic_shapes
    )
    note = (
        f"the file takes sequences of {length} alone, as the example has: the model or torch makes "
        f"a constant of the length ({_first_line(why)})"
    )
    return replace(
        call,
        dynamic_shapes=shapes,
        batches=call.batches[:-1],
        optional=None,
        notes=(*call.notes, note),
    )


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} …"


def _by_name(model: nn.Module, example: Example) -> dict[str, Any]:
    """Name the inputs as the forward does; those of ``*args`` by their number."""
    if isinstance(example, Mapping):
        values = {name: value for name, value in example.items() if value is not None}
        known = signature(model.forward).parameters.values()
        unknown = values.keys() - {one.name for one in known}
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in known):
            raise ExportError(
                f"the forward of {type(model).__name__} has no {' and no '.join(sorted(unknown))}; "
                f"it takes {', '.join(one.name for one in known)}"
            )
        return values
    given = (example,) if isinstance(example, Tensor) else tuple(example)
    names = [
        one.name
        for one in signature(model.forward).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    names += [f"input_{number}" for number in range(len(names), len(given))]
    return dict(zip(names, given, strict=False))


def _called_by_name(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Derive a class whose forward takes by position what the given one takes by name."""

    def forward(self: nn.Module, *inputs: Tensor) -> object:
        return kind.forward(self, **dict(zip(names, inputs, strict=True)))

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _shapes(
    names: tuple[str, ...], inputs: tuple[Tensor, ...], asked: Shapes | None
) -> tuple[tuple[dict[int, str], ...], str | None]:
    """Return the dynamic dimensions, and the name of the one that torch may refuse."""
    if isinstance(asked, Mapping):
        if not all(isinstance(name, str) for name in asked):
            raise ValueError(
                "dynamic_shapes gives axes where names of inputs belong; give a list with one "
                f"mapping for each input ({', '.join(names)}), as [{dict(asked)}]"
            )
        unknown = asked.keys() - set(names)
        if unknown:
            raise ValueError(
                f"dynamic_shapes names {', '.join(sorted(unknown))}, the inputs are "
                f"{', '.join(names)}"
            )
        return tuple({0: BATCH, **asked.get(name, {})} for name in names), None
    if asked is not None:
        if len(asked) != len(inputs):
            raise ValueError(f"dynamic_shapes names {len(asked)} inputs, there are {len(inputs)}")
        return tuple(map(dict, asked)), None
    lengths = {tensor.shape[1] for tensor in inputs if _are_tokens(tensor)}
    if len(lengths) != 1 or min(lengths) < 2:
        return ({0: BATCH},) * len(inputs), None
    shapes = tuple({0: BATCH, 1: SEQUENCE} if _are_tokens(t) else {0: BATCH} for t in inputs)
    return shapes, SEQUENCE


def _are_tokens(tensor: Tensor) -> bool:
    return tensor.ndim == 2 and not tensor.is_floating_point() and not tensor.is_complex()


def _shorter(
    inputs: tuple[Tensor, ...], shapes: tuple[dict[int, str], ...], name: str
) -> tuple[Tensor, ...]:
    """Cut the named dimension to half its length."""
    cut = []
    for tensor, dimensions in zip(inputs, shapes, strict=True):
        for axis, dimension in dimensions.items():
            if dimension == name:
                tensor = tensor.narrow(axis, 0, (tensor.shape[axis] + 1) // 2)
        cut.append(tensor)
    return tuple(cut)
