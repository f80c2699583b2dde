"""The CUDA kernels of fanin, as a library that fanin's op library loads from beside it."""
