"""Print registers, spills and shared memory of every CUDA kernel, as ptxas reports them.

    tools/cuda_resources.py [--architectures 80 90] [--sources 'expand_*'] [--jobs 2]

Compiles the kernels with nvcc (NVCC, or from PATH) and prints a Markdown table. Shared memory is
dynamic in all kernels; docs/cuda.md states how much.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "ort_ops" / "csrc"
KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def compile_one(nvcc: str, source: Path, architecture: str) -> str:
    """Return ptxas' report on a source for one architecture."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(nvcc, "-std=c++17", "-O3", "-DNDEBUG", f"-I{SOURCES}", f"-arch=sm_{architecture}"),
            *("-Werror", "all-warnings", "-Xptxas", "-v", "-cubin"),
            *("-o", f"{folder}/out.cubin", str(source)),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stderr


def readable(symbol: str) -> str:
    """Return a short readable name of a kernel from its mangled symbol."""
    try:
        name = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout
    except OSError:
        return symbol
    found = re.search(r"fanin::cuda::(\w+)Kernel<(.*?)>, ", name)
    if not found:
        return symbol
    arguments = found[2].rstrip().replace("fanin::cuda::", "")
    arguments = arguments.replace("unsigned short", "uint16")
    arguments = arguments.replace("unsigned int", "uint32").replace("Bfloat16", "bfloat16")
    arguments = arguments.replace("Float16", "float16").replace("float,", "float32,")
    return f"{found[1].lower()}<{arguments}>"


def rows_of(text: str) -> list[tuple[str, str, int, int, int]]:
    """Parse kernel, architecture, registers, bytes of stack and of spill stores."""
    rows = []
    kernel = architecture = ""
    stack = spill = 0
    for line in text.splitlines():
        if found := KERNEL.search(line):
            kernel, architecture = readable(found[1]), found[2]
        elif found := STACK.search(line):
            stack, spill = int(found[1]), int(found[2])
        elif (found := REGISTERS.search(line)) and kernel:
            rows.append((kernel, architecture, int(found[1]), stack, spill))
            kernel = ""
    return rows


def main() -> None:
    """Compile all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architectures", nargs="+", default=["80", "90"])
    parser.add_argument("--sources", default="*", help="pattern of names without .cu")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    nvcc = os.environ.get("NVCC", "nvcc")
    sources = sorted((SOURCES / "cuda").glob(f"{arguments.sources}.cu"))
    work = [(nvcc, source, arch) for arch in arguments.architectures for source in sources]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        texts = list(pool.map(lambda item: compile_one(*item), work))
    table: dict[str, dict[str, str]] = {}
    for text in texts:
        for kernel, architecture, registers, stack, spill in rows_of(text):
            cell = f"{registers}, {spill} B" + (f" (stack {stack} B)" if stack > spill else "")
            table.setdefault(kernel, {})[architecture] = cell
    print("| kernel | " + " | ".join(f"sm_{a}" for a in arguments.architectures) + " |")
    print("|---" * (1 + len(arguments.architectures)) + "|")
    for kernel in sorted(table):
        cells = [table[kernel].get(architecture, "") for architecture in arguments.architectures]
        print(f"| `{kernel}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
