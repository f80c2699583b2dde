"""The op library and that of fanin-cuda, which are loaded by path; data files; and the version."""

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, copy_metadata

binaries = collect_dynamic_libs("fanin")
if find_spec("fanin_cuda"):
    binaries += collect_dynamic_libs("fanin_cuda")
datas = collect_data_files("fanin") + copy_metadata("fanin")
