"""A language model's file with a cache, decoded greedily in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime import load_onnxruntime
from .ort import open_model

_CACHE, _PRESENT = "past_key_values.", "present."


class Decoder:
    """Decodes one sequence. The cache is an OrtValue, so that a step copies none of it in Python.

    Args:
        path: a file with optimum's names of inputs and outputs.
        threads: of the session.
        library: open it with fanin's op library.

    """

    def __init__(self, path: Path, threads: int, *, library: bool) -> None:
        runtime = load_onnxruntime()
        self._value: Any = runtime.OrtValue.ortvalue_from_numpy
        self.session: Any = open_model(path, threads, runtime.SessionOptions(), library=library)
        self._outputs = [port.name for port in self.session.get_outputs()]
        ports = self.session.get_inputs()
        self._inputs = {port.name for port in ports}
        self._empty = {
            port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32)
            for port in ports
            if port.name.startswith(_CACHE)
        }
        self.logits = np.empty(0, np.float32)
        self._cache: dict[str, Any] = {}
        self._length = 0

    def start(self, prompt: Sequence[int]) -> int:
        """Forget what was, read a prompt, and return the token that follows."""
        self._cache = {name: self._value(array) for name, array in self._empty.items()}
        self._length = 0
        return self._step(prompt)

    def decode(self, token: int, count: int) -> list[int]:
        """Append a token, and return ``count`` that follow it."""
        tokens = []
        for _ in range(count):
            token = self._step([token])
            tokens.append(token)
        return tokens

    def mark(self) -> tuple[dict[str, Any], int]:
        """Return where the sequence is, for :meth:`go_back`."""
        return self._cache, self._length

    def go_back(self, mark: tuple[dict[str, Any], int]) -> None:
        """Go on from there again."""
        self._cache, self._length = mark

    def _step(self, tokens: Sequence[int]) -> int:
        first, self._length = self._length, self._length + len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            "position_ids": np.arange(first, self._length, dtype=np.int64)[None],
        }
        given = {name: self._value(a) for name, a in feeds.items() if name in self._inputs}
        outputs = self.session.run_with_ort_values(self._outputs, {**given, **self._cache})
        self._cache = {
            name.replace(_PRESENT, _CACHE): value
            for name, value in zip(self._outputs, outputs, strict=True)
            if name.startswith(_PRESENT)
        }
        self.logits = outputs[self._outputs.index("logits")].numpy()[0, -1]
        return int(self.logits.argmax())
