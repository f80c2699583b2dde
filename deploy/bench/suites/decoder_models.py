"""Language models for ``fanin bench decoder``: made-up weights, pruned by magnitude, as files.

Times do not depend on the values of weights. The projections of attention and MLP are sparse, with
the same fan-in in every row; embedding and output projection are dense, in the precision of the
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..requirements import require
from ..results.plain import to_plain

PROMPT, ANSWER = 16, 32
"""Lengths of the reference that torch decodes for every model."""

FORMS = ("dense", "dense-int8", "dense-int4", "condensed", "condensed-int8")


@dataclass(frozen=True)
class DecoderConfig:
    """A Llama-style model."""

    hidden: int = 1536
    intermediate: int = 4096
    layers: int = 16
    heads: int = 12
    kv_heads: int = 3
    vocabulary: int = 32_000

    def __post_init__(self) -> None:
        if min(to_plain(self).values()) < 1:
            raise ValueError(f"every size of a decoder must be at least 1, got {to_plain(self)}")
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden is {self.hidden}, heads {self.heads}, kv_heads {self.kv_heads}; heads "
                "must be of an even size, and a multiple of kv_heads"
            )

    @property
    def sparse_weights(self) -> int:
        """Count the weights of attention and MLP."""
        keys = self.hidden * self.kv_heads // self.heads
        attention = 2 * self.hidden * (self.hidden + keys)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weights(self) -> int:
        """Count all weights but the norms'."""
        return self.sparse_weights + 2 * self.vocabulary * self.hidden

    def torch_model(self, sparsity: float) -> Any:
        """Build the model, pruned by magnitude with the same fan-in in every row."""
        torch = require("torch", "the decoders are made with it", "train")
        transformers = require("transformers", "the decoders are made with it", "train")
        torch.manual_seed(0)
        settings = transformers.LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=self.vocabulary,
        )
        model = transformers.LlamaForCausalLM(settings).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 2 and ".layers." in name:
                    fan_in = max(1, round((1 - sparsity) * weight.shape[1]))
                    kept = weight.abs().topk(fan_in, dim=1).indices
                    weight.mul_(torch.zeros_like(weight).scatter_(1, kept, 1.0))
        return model


@dataclass(frozen=True)
class DecoderFiles:
    """Makes the files of a decoder at one sparsity, each where it is first needed.

    Attributes:
        config: the model.
        sparsity: of its projections.
        folder: where the files go; those that are there already are taken.
        threads: of the sessions that ``--policy auto`` chooses for.
        say: told what is being made.

    """

    config: DecoderConfig
    sparsity: float
    folder: Path
    threads: int
    say: Callable[[str], None]

    def path_of(self, form: str) -> Path:
        """Return the file of a form, one of FORMS."""
        path = self._file(form)
        if not path.is_file():
            self.say(f"{path.name}: export")
            make = {
                "dense": self._export,
                "condensed": self._export,
                "dense-int8": self._int8,
                "dense-int4": self._int4,
                "condensed-int8": self._condensed_int8,
            }
            make[form](path)
        return path

    def _file(self, form: str) -> Path:
        sizes = "-".join(map(str, to_plain(self.config).values()))
        return self.folder / f"decoder-{sizes}-{100 * self.sparsity:g}.{form}.onnx"

    @cached_property
    def _model(self) -> Any:
        return self.config.torch_model(self.sparsity)

    def forget(self) -> None:
        """Free the memory of the torch model, if it was made."""
        self.__dict__.pop("_model", None)

    @property
    def reference(self) -> dict[str, np.ndarray]:
        """Tokens of a prompt, the tokens that torch decodes after it, and the logits of each."""
        path = self._file("reference").with_suffix(".npz")
        if not path.is_file():
            self.say(f"{path.name}: torch")
            prompt, tokens, logits = _decode(self._model, self.config.vocabulary)
            np.savez(path, prompt=prompt, tokens=tokens, logits=logits)
        with np.load(path) as arrays:
            return dict(arrays)

    def _export(self, path: Path) -> None:
        torch = require("torch", "the decoders are made with it", "train")
        transformers = require("transformers", "the decoders are made with it", "train")
        from ....export import export

        dense = path == self._file("dense")
        export(
            self._model,
            {
                "input_ids": torch.zeros(1, 8, dtype=torch.int64),
                "past_key_values": transformers.DynamicCache(),
            },
            path,
            policy="dense" if dense else "auto",
            threads=self.threads,
            portable=dense,
            verify=False,  # every engine is compared with torch before it is measured
        )

    def _int8(self, path: Path) -> None:
        tools = require("onnxruntime.quantization", "models are quantized by it")
        tools.quantize_dynamic(
            self.path_of("dense"),
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=tools.QuantType.QInt8,
            use_external_data_format=True,
        )

    def _int4(self, path: Path) -> None:
        import onnx

        tool = require(
            "onnxruntime.quantization.matmul_nbits_quantizer", "models are quantized by it"
        )
        # Activations of 8 bits, which is its fastest kernel on a CPU.
        quantizer = tool.MatMulNBitsQuantizer(
            onnx.load(self.path_of("dense")),
            bits=4,
            block_size=32,
            is_symmetric=True,
            accuracy_level=4,
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(path), use_external_data_format=True)

    def _condensed_int8(self, path: Path) -> None:
        from ....export import convert

        convert(self.path_of("dense-int8"), path, threads=self.threads, verify=False)


def _decode(model: Any, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode greedily with torch in float32; returns prompt, tokens, and logits of each."""
    import torch

    transformers = require("transformers", "the decoders are made with it", "train")
    prompt = torch.randint(vocabulary, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    cache, tokens, logits, ids = transformers.DynamicCache(), [], [], prompt
    with torch.no_grad():
        for _ in range(ANSWER):
            result = model(input_ids=ids, past_key_values=cache, use_cache=True)
            logits.append(result.logits[0, -1].numpy())
            ids = result.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
    return prompt.numpy(), np.array(tokens, dtype=np.int64), np.stack(logits)
