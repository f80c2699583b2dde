"""Seeds derived from names and counters, so that no random state needs saving."""

import zlib

import numpy as np
import torch


def derived_generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by a mix of non-negative integers and strings.

    Mixing matters: torch keeps only the lower 32 bits of a seed, so numbers cannot be packed into
    one by shifting.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in parts]
    return torch.Generator().manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
