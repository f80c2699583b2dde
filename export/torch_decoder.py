"""Causal language models of transformers with their cache as inputs and outputs of the file.

One file serves prefill, with a past of length 0, and decoding. Its inputs and outputs have the
names and layouts of Hugging Face's optimum, so that what serves such files serves ours:
``input_ids``, ``attention_mask`` over past and new tokens, ``position_ids`` if the model takes
them, ``past_key_values.N.key`` and ``.value`` [batch, heads, past, size]; ``logits`` and
``present.N.key`` and ``.value``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from .errors import ExportError

_CACHE_NAMES = ("past_key_values", "cache")
"""What versions of transformers call the argument."""

_PAST, _NEW = 6, 3
"""Lengths that the file is traced with, where the example is no shorter."""


@dataclass(frozen=True)
class DecoderCall:
    """A decoder's call: as :class:`.torch_inputs.Call`."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    dynamic_shapes: tuple[dict[int, str], ...]
    batches: tuple[tuple[Tensor, ...], ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def is_cache(value: object) -> bool:
    """Say whether a value is a cache of transformers, without importing it."""
    module = sys.modules.get("transformers.cache_utils")
    return module is not None and isinstance(value, module.Cache)


def decoder_call(model: nn.Module, given: Mapping[str, Any]) -> DecoderCall:
    """Prepare a causal language model whose example has a cache.

    The cache says that the file is to have one; its contents and lengths do not matter. The model
    is checked on a prefill, on single tokens after it, of which one sample is padded on the left,
    and on several tokens after it.

    Args:
        model: the copy that is exported. Its class changes: its forward takes and gives tensors.
        given: inputs by name: input_ids, a DynamicCache, optionally attention_mask and
            position_ids, which are made up.

    Raises:
        ExportError: another cache or other inputs; layers that keep something else than the keys
            and values of all tokens.

    """
    parameters = signature(model.forward).parameters
    argument = next((name for name in _CACHE_NAMES if name in parameters), None)
    ids = given.get("input_ids")
    if argument is None or not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel():
        raise ExportError(
            "a cache goes with a causal language model of transformers and input_ids [batch, "
            f"tokens]; {type(model).__name__} was given {', '.join(given)}"
        )
    caches = {name for name, value in given.items() if is_cache(value)}
    others = given.keys() - caches - {"input_ids", "attention_mask", "position_ids", "use_cache"}
    if others:
        raise ExportError(
            f"{', '.join(sorted(others))} cannot be an input beside a cache; leave it out"
        )
    for name in caches:
        kind = type(given[name])
        if all(one.__name__ != "DynamicCache" for one in kind.__mro__):
            raise ExportError(f"{name} is a {kind.__name__}; pass transformers.DynamicCache()")
    positions = "position_ids" in parameters
    ids = _at_least(ids.detach().cpu(), rows=2, columns=_PAST + _NEW)
    past_ids, new_ids = ids[:, :_PAST], ids[:, _PAST : _PAST + _NEW]
    past = _filled(model, argument, past_ids)
    model.__class__ = _with_cache(type(model), argument, type(_new_cache()), positions=positions)

    def inputs(new: Tensor, kept: list[Tensor], padding: int = 0) -> tuple[Tensor, ...]:
        rows, length = len(new), new.shape[1] + (kept[0].shape[2] if kept else 0)
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[-1, :padding] = 0
        place = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :].contiguous()
        return (new, mask, *([place] if positions else []), *kept)

    traced = inputs(new_ids, past)
    nothing = [tensor[:, :, :0] for tensor in past]
    batches = (
        inputs(past_ids, nothing),
        inputs(new_ids[:1, :1], [tensor[:1] for tensor in past]),
        inputs(_at_least(new_ids[:, :1], rows=3), [_at_least(t, rows=3) for t in past], 2),
        traced,
    )
    rows_and_new = {0: "batch", 1: "sequence_length"}
    shapes = [rows_and_new, {0: "batch", 1: "total_sequence_length"}]
    shapes += [rows_and_new] * positions + [{0: "batch", 2: "past_sequence_length"}] * len(past)
    names = ("input_ids", "attention_mask", *(["position_ids"] if positions else []))
    parts = [f"{layer}.{part}" for layer in range(len(past) // 2) for part in ("key", "value")]
    return DecoderCall(
        model,
        traced,
        tuple(map(dict, shapes)),
        batches,
        (*names, *(f"past_key_values.{part}" for part in parts)),
        ("logits", *(f"present.{part}" for part in parts)),
    )


def _new_cache() -> Any:
    return sys.modules["transformers.cache_utils"].DynamicCache()


def _at_least(tensor: Tensor, rows: int, columns: int = 0) -> Tensor:
    """Repeat samples and tokens until there are as many; torch takes a size of 1 for a constant."""
    across = -(-columns // tensor.shape[1]) if columns else 1
    down = -(-rows // len(tensor))
    repeated = tensor.repeat(down, across, *[1] * (tensor.ndim - 2))
    return repeated[: max(rows, 1)] if len(tensor) < rows else repeated


def _filled(model: nn.Module, argument: str, ids: Tensor) -> list[Tensor]:
    """Run the model on tokens; return the keys and values that it keeps, layer by layer."""
    cache = _new_cache()
    try:
        with torch.no_grad():
            model(input_ids=ids, **{argument: cache}, use_cache=True)
    except Exception as error:
        raise ExportError(
            f"the model does not run on input_ids of the shape {list(ids.shape)} and a "
            f"DynamicCache: {error}"
        ) from error
    kept = list(_tensors(cache))
    if not kept or any(t.ndim != 4 or t.shape[2] != ids.shape[1] for t in kept):
        raise ExportError(
            f"{type(model).__name__} does not keep the keys and values of all tokens in its cache, "
            "so no file of one past length can serve it"
        )
    return [tensor.float() if tensor.dtype != torch.float32 else tensor for tensor in kept]


def _tensors(cache: Any) -> Iterator[Tensor]:
    for layer in cache.layers:
        for part in ("keys", "values"):
            tensor = getattr(layer, part, None)
            if not isinstance(tensor, Tensor):
                raise ExportError(
                    f"a layer of the cache is a {type(layer).__name__}, which has no {part}; only "
                    "attention with keys and values can be exported with its cache"
                )
            yield tensor


def _with_cache(
    kind: type[nn.Module], argument: str, cache_type: type, *, positions: bool
) -> type[nn.Module]:
    """Derive a class whose forward takes the cache as tensors and returns them with the logits."""
    leading = 3 if positions else 2

    def forward(self: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
        names = ("input_ids", "attention_mask", "position_ids")[:leading]
        cache = cache_type()
        past = inputs[leading:]
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        named = dict(zip(names, inputs[:leading], strict=True))
        result = kind.forward(self, **named, **{argument: cache}, use_cache=True)
        return (result.logits, *_tensors(cache))

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
