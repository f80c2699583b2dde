"""Prune a trained network, and train it on with its masks: accuracy on scikit-learn's digits.

``python examples/prune_digits.py`` prints the table of docs/pruning.md.
"""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from fanin.trainer import Sparsifier, prune_

SPARSITIES = (0.8, 0.9, 0.95)


class Digits:
    """Images with their labels, 1,400 for training and 397 for the test."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target)
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))
        self.train, self.test = order[:1400], order[1400:]

    def fit(
        self, model: nn.Module, optimizer: Adam, epochs: int, sparsifier: Sparsifier | None = None
    ) -> None:
        for _ in range(epochs):
            for batch in self.train[torch.randperm(len(self.train))].split(64):
                cross_entropy(model(self.images[batch]), self.labels[batch]).backward()
                optimizer.step()
                if sparsifier:
                    sparsifier.step()
                optimizer.zero_grad()

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        right: Tensor = model(self.images[self.test]).argmax(1) == self.labels[self.test]
        return right.float().mean().item()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = Digits()
    layers = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    digits.fit(model, Adam(model.parameters(), 1e-3), epochs=15)
    dense = digits.accuracy(model)
    for sparsity in SPARSITIES:
        sparse = copy.deepcopy(model)
        pruned = prune_(sparse, sparsity, dense_layers=["4"])
        before = digits.accuracy(sparse)
        optimizer = Adam(sparse.parameters(), 5e-4)
        digits.fit(sparse, optimizer, 10, pruned.keep_masks(sparse, optimizer))
        after = digits.accuracy(sparse)
        print(f"| {sparsity:.0%} | {dense:.1%} | {before:.1%} | {after:.1%} |")


if __name__ == "__main__":
    main()
