#!/usr/bin/env python3
"""Run random convolutions in ONNX Runtime against the float64 sums of the dense weight.

    python tools/random_convs.py --cases 20000          a new seed, which is printed
    python tools/random_convs.py --seed 7 --case 1234   one case again

tests/ort_ops/_random_conv_nodes.py draws the cases and states the bound. Needs the dev
dependencies.
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

from tests.ort_ops._random_conv_nodes import ConvTally, RandomConvError, check_conv


def main() -> int:
    """Run the command line; exit status 1 when a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2_000, help="how many (default: 2000)")
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--case", type=int, help="only this case of the seed, to replay it")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args()
    if options.cases < 1 or options.jobs < 1:
        parser.error("--cases and --jobs are at least 1")
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    if seed < 0:
        parser.error("--seed is at least 0")
    cases = range(options.cases)
    if options.case is not None:
        cases = range(options.case, options.case + 1)
    print(f"seed {seed}, {len(cases)} convolutions", flush=True)
    started, total = time.monotonic(), ConvTally()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        try:
            for tally in pool.imap(partial(check_conv, seed), cases, chunksize=50):
                total.add(tally)
        except RandomConvError as error:
            print(f"after {total.cases} sound cases: {error}", file=sys.stderr)
            return 1
    print(
        f"{total.cases} convolutions within the bound in {time.monotonic() - started:.0f} s; "
        f"worst error {total.worst:.2f} of its bound"
    )
    for kind, count in sorted(total.seen.items()):
        print(f"  {count:7} {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
