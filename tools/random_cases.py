#!/usr/bin/env python3
"""Compare random cases of the ops and their kernels with the float64 reference.

    python tools/random_cases.py --cases 100000          a new seed, which is printed
    python tools/random_cases.py --seed 7 --group 1234   replay one group
    python tools/random_cases.py --op conv               convolutions, through their kernels
    python tools/random_cases.py --op conv-node          convolutions, in ONNX Runtime
    python tools/random_cases.py --op quantized          the ops on 8-bit integers, bit for bit

tests/ort_ops/_random_cases.py, _random_convs.py, _random_conv_nodes.py and _random_quantized.py
draw the cases and state the bound. Needs the dev dependencies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.ort_ops import _random_cases, _random_conv_nodes, _random_convs, _random_quantized
from tests.ort_ops._random_tally import RandomCaseError, Tally

CHECKS = {
    "gemm": _random_cases.check_group,
    "conv": _random_convs.check_case,
    "conv-node": _random_conv_nodes.check_conv,
    "quantized": _random_quantized.check_node,
}


def main() -> int:
    """Run the command line; the exit status is 1 if a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--op", choices=[*CHECKS], default="gemm")
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--group", type=int, help="only this group of the seed, to replay it")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args()
    if options.cases < 1 or options.jobs < 1:
        parser.error("--cases and --jobs are at least 1")
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    if seed < 0:
        parser.error("--seed is at least 0")
    size = _random_cases.CASES_PER_GROUP if options.op == "gemm" else 1
    check, total = CHECKS[options.op], Tally()
    groups = range(-(-options.cases // size))
    if options.group is not None:
        groups = range(options.group, options.group + 1)
    print(f"seed {seed}, {len(groups)} groups of {size} cases", flush=True)
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        try:
            for tally in pool.imap(partial(check, seed), groups, chunksize=8):
                total.add(tally)
        except RandomCaseError as error:
            print(f"after {total.cases} correct cases: {error}", file=sys.stderr)
            return 1
    print(
        f"{total.cases} cases within the bound in {time.monotonic() - started:.0f} s; worst error "
        f"{total.worst:.2f} of its bound; {total.with_special} with NaN or Inf in x"
    )
    for route, count in sorted(total.routes.items()):
        print(f"  {count:7} {route}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
