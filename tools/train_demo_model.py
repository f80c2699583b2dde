#!/usr/bin/env python3
"""Train the sparse network that ships in the package, and write it with some test images.

    python tools/train_demo_model.py            # deploy/demo/digits.onnx and examples.json
    python tools/train_demo_model.py -o folder

The recipe is tools/demo_model.toml. The file takes pixels from 0 to 16, as scikit-learn has them:
the normalization of the training data is folded into the first layer, so that a request needs no
preprocessing. Its second output is the index of the largest of the ten scores. Training is
deterministic for one version of PyTorch on one kind of CPU; on others, weights may differ.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import fanin
from fanin.deploy import open_session
from fanin.export import export
from fanin.trainer import load_recipe, load_run, train
from fanin.trainer.data import Split, load_dataset
from fanin.trainer.data.digits import DEVIATION, MEAN, WHITE

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "tools" / "demo_model.toml"
OUT = ROOT / "deploy" / "demo"
EXAMPLES = 8
OUTPUTS = ("scores", "digit")
SOURCE = (
    "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning "
    "Repository, 1998 (doi:10.24432/C50P49, CC BY 4.0), as scikit-learn distributes it"
)


class Classifier(nn.Module):
    """A network of normalized images, as one of pixels from 0 to 16 that also names the digit."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network = network
        first = network.get_submodule("fc1")
        with torch.no_grad():
            first.bias -= first.weight.sum(1) * (MEAN / DEVIATION)
            first.weight /= WHITE * DEVIATION

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [batch, 10] and digits [batch] of pixels [batch, 1, 8, 8]."""
        scores = self.network(pixels)
        return scores, scores.argmax(1)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=OUT)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write(folder)


def write(folder: Path) -> None:
    """Write digits.onnx and examples.json."""
    pixels, labels = test_images()
    with tempfile.TemporaryDirectory() as scratch:
        train(load_recipe(str(RECIPE)), Path(scratch) / "run", progress=False)
        run = load_run(Path(scratch) / "run")
    masks = {f"network.{name}": mask for name, mask in run.masks.items()}
    path = folder / "digits.onnx"
    example = torch.from_numpy(pixels)
    print(export(Classifier(run.model).eval(), example, path, masks=masks, policy="condensed"))
    model = onnx.load(path)
    name_outputs(model.graph)
    onnx.save(model, path)
    (digits,) = open_session(path, threads=1).run(["digit"], {"pixels": pixels})
    correct = int((digits == labels).sum())
    describe(model, correct, len(labels))
    onnx.save(model, path)
    examples = {
        "pixels": pixels[:EXAMPLES].astype(int).reshape(EXAMPLES, -1).tolist(),
        "labels": labels[:EXAMPLES].tolist(),
        "test_correct": correct,
        "test_images": len(labels),
    }
    (folder / "examples.json").write_text(json.dumps(examples) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes, {correct} of {len(labels)} test images right")


def test_images() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [360, 1, 8, 8] from 0 to 16, and the labels, of the split not trained on."""
    test = load_dataset("digits").test
    assert isinstance(test, Split)
    pixels = ((test.inputs * DEVIATION + MEAN) * WHITE).round()
    return pixels.numpy(), test.labels.numpy()


def name_outputs(graph: onnx.GraphProto) -> None:
    """Give the outputs the names that requests and answers show."""
    names = dict(zip((value.name for value in graph.output), OUTPUTS, strict=True))
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in graph.output:
        value.name = names[value.name]


def describe(model: onnx.ModelProto, correct: int, count: int) -> None:
    """Say in the file's metadata what it is, how good it is, and how it was made."""
    facts = {
        "description": "digit (0 to 9) of an 8x8 image whose pixels are from 0 to 16",
        "test_correct": str(correct),
        "test_images": str(count),
        "training": f"SRigL, 95 % sparse hidden layers, one seed: {RECIPE.name} of fanin's tools",
        "made_with": f"fanin {fanin.__version__}, torch {torch.__version__}",
        "data": SOURCE,
    }
    onnx.helper.set_model_props(model, facts)


if __name__ == "__main__":
    main()
