"""fanin demo and fanin library-path: what a first look, and other languages, need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import readable


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to create or extend.")] = Path(
        "fanin-demo"
    ),
) -> None:
    """Write a small trained sparse model with images to run it on, and say what to do next."""
    from ..deploy.demo import next_steps, write_demo

    with readable(OSError):
        written = write_demo(out)
    print(next_steps(written), end="")


def library_path(
    cuda: Annotated[
        bool, typer.Option("--cuda", help="The library of the CUDA kernels, which it loads.")
    ] = False,
    cmake_dir: Annotated[
        bool, typer.Option("--cmake-dir", help="The folder for CMake: -Dfanin_DIR=FOLDER.")
    ] = False,
    pkgconfig_dir: Annotated[
        bool, typer.Option("--pkgconfig-dir", help="The folder for PKG_CONFIG_PATH.")
    ] = False,
) -> None:
    """Print the path of the op library, which programs in any language register."""
    from ..ort_ops import get_library_path
    from ..ort_ops.library import get_cmake_folder, get_cuda_library_path, get_pkgconfig_folder

    if cuda + cmake_dir + pkgconfig_dir > 1:
        raise typer.BadParameter("give one of --cuda, --cmake-dir and --pkgconfig-dir")
    find = get_library_path
    if cuda:
        find = get_cuda_library_path
    elif cmake_dir:
        find = get_cmake_folder
    elif pkgconfig_dir:
        find = get_pkgconfig_folder
    with readable(OSError):
        found = find()
    print(found)
