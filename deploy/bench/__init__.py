"""Benchmarks: sparse against dense, in one run, checked and with their spread.

``docs/benchmarks.md`` says how the numbers are made and what they do not contain.
"""

from .comparing import ResultComparison, ResultFileError, compare_results
from .kernels import BenchKernelsSpec, KernelsResult, bench_kernels
from .layer import BenchLayerSpec, bench_layer
from .memory import BenchMemorySpec, MemoryResult, bench_memory
from .model import BenchModelSpec, bench_model
from .paper import BenchPaperSpec, PaperResult, bench_paper
from .requirements import RequirementError
from .result import Result

__all__ = [
    "BenchKernelsSpec",
    "BenchLayerSpec",
    "BenchMemorySpec",
    "BenchModelSpec",
    "BenchPaperSpec",
    "KernelsResult",
    "MemoryResult",
    "PaperResult",
    "RequirementError",
    "Result",
    "ResultComparison",
    "ResultFileError",
    "bench_kernels",
    "bench_layer",
    "bench_memory",
    "bench_model",
    "bench_paper",
    "compare_results",
]
