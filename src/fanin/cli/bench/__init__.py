"""fanin bench: one file for each command."""

from __future__ import annotations

from collections.abc import Callable

import typer

from ..flags import Command, Group
from .compare import bench_compare
from .cuda import bench_cuda
from .decoder import bench_decoder
from .kernels import bench_kernels
from .layer import bench_layer
from .memory import bench_memory
from .model import bench_model
from .page import bench_page
from .paper import bench_paper
from .scaling import bench_scaling
from .server import bench_server
from .serving import bench_serving
from .zoo import bench_zoo

bench = typer.Typer(
    no_args_is_help=True, cls=Group, help="Measure against dense, in interleaved rounds."
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "layer": bench_layer,
    "model": bench_model,
    "kernels": bench_kernels,
    "cuda": bench_cuda,
    "decoder": bench_decoder,
    "memory": bench_memory,
    "paper": bench_paper,
    "scaling": bench_scaling,
    "zoo": bench_zoo,
    "serving": bench_serving,
    "server": bench_server,
    "compare": bench_compare,
    "page": bench_page,
}
for name, command in _COMMANDS.items():
    bench.command(name, cls=Command)(command)
