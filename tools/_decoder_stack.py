"""A stack of Llama-style decoder layers that computes one token, with sparse projections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StackSizes:
    """Sizes of the stack; the defaults are those of Llama 3 8B, but for the number of layers."""

    hidden: int = 4096
    intermediate: int = 14336
    layers: int = 4
    heads: int = 32
    kv_heads: int = 8
    past: int = 128
    sparsity: float = 0.9

    @property
    def head(self) -> int:
        """Features of a head."""
        return self.hidden // self.heads


def sparse_linear(columns: int, rows: int, sparsity: float, seed: int) -> nn.Linear:
    """Make a layer of random weights, as many in each row, in columns drawn from even strides."""
    fan_in = max(1, round((1 - sparsity) * columns))
    draw = torch.Generator().manual_seed(seed)
    starts = torch.arange(fan_in) * columns // fan_in
    widths = torch.diff(starts, append=torch.tensor([columns]))
    places = starts + (torch.rand(rows, fan_in, generator=draw) * widths).long()
    values = torch.randn(rows, fan_in, generator=draw) / math.sqrt(fan_in)
    layer = nn.Linear(columns, rows, bias=False, device="meta")
    layer.weight = nn.Parameter(torch.zeros(rows, columns).scatter_(1, places, values))
    return layer


class _Norm(nn.Module):
    """RMS norm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return scaled * self.weight


class _DecoderLayer(nn.Module):
    """Attention of one token to itself and the past, then the MLP with SiLU."""

    def __init__(self, sizes: StackSizes, seed: int) -> None:
        super().__init__()
        self.sizes = sizes
        hidden, kv = sizes.hidden, sizes.kv_heads * sizes.head
        shapes = {
            "q": (hidden, hidden),
            "k": (hidden, kv),
            "v": (hidden, kv),
            "o": (hidden, hidden),
            "gate": (hidden, sizes.intermediate),
            "up": (hidden, sizes.intermediate),
            "down": (sizes.intermediate, hidden),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            setattr(self, name, sparse_linear(*shape, sizes.sparsity, 100 * seed + number))
        self.before_attention, self.before_mlp = _Norm(hidden), _Norm(hidden)
        draw = torch.Generator().manual_seed(seed)
        cache = (1, sizes.kv_heads, sizes.past, sizes.head)
        self.register_buffer("keys", torch.randn(cache, generator=draw))
        self.register_buffer("values", torch.randn(cache, generator=draw))
        angles = sizes.past * 500_000.0 ** (-torch.arange(0, sizes.head, 2) / sizes.head)
        self.register_buffer("cosine", torch.cat([angles, angles]).cos())
        self.register_buffer("sine", torch.cat([angles, angles]).sin())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.before_attention(x))
        h = self.before_mlp(x)
        result: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return result

    def _attend(self, h: Tensor) -> Tensor:
        sizes = self.sizes
        grouped = (-1, sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.head)
        single = (-1, sizes.kv_heads, 1, sizes.head)
        q, k = self._turn(self.q(h).reshape(grouped)), self._turn(self.k(h).reshape(single))
        v = self.v(h).reshape(single)
        # Scores of the past and of the token itself, without a copy of the cache for each sample.
        past = q @ self.keys.transpose(2, 3)
        own = (q * k).sum(-1, keepdim=True)
        weights = torch.softmax(torch.cat([past, own], -1) / math.sqrt(sizes.head), -1)
        mixed = weights[..., : sizes.past] @ self.values + weights[..., sizes.past :] * v
        result: Tensor = self.o(mixed.reshape(-1, sizes.hidden))
        return result

    def _turn(self, x: Tensor) -> Tensor:
        """Embed the position."""
        first, second = x.chunk(2, -1)
        turned: Tensor = x * self.cosine + torch.cat([-second, first], -1) * self.sine
        return turned


def decoder_stack(sizes: StackSizes) -> nn.Module:
    """Build the stack: hidden states ``[batch, hidden]`` of one token to the same.

    The cache of past tokens is constant, so that the file has one input and one output.
    """
    layers = (_DecoderLayer(sizes, seed) for seed in range(1, sizes.layers + 1))
    return nn.Sequential(*layers).eval()
