"""Seeds derived from names and counters, so that no hidden random state needs saving."""

import zlib

import numpy as np
import torch


def derived_seed(*parts: int | str) -> int:
    """Mix non-negative integers and strings into one 63-bit seed, the same on every machine."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts]
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
    return int(state) >> 1


def derived_generator(*parts: int | str) -> torch.Generator:
    """CPU generator seeded from ``parts`` (torch keeps only the lower 32 bits of a seed)."""
    return torch.Generator().manual_seed(derived_seed(*parts) & 0xFFFFFFFF)
