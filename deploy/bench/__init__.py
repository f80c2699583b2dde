"""Benchmarks: sparse against dense, in one run, checked and with their spread.

``docs/benchmarks.md`` says how the numbers are made and what they do not contain.
"""

from .requirements import RequirementError
from .results.compare import ResultComparison, ResultFileError, compare_results
from .results.result import Result
from .suites.kernels import BenchKernelsSpec, KernelsResult, bench_kernels
from .suites.layer import BenchLayerSpec, bench_layer
from .suites.memory import BenchMemorySpec, MemoryResult, bench_memory
from .suites.model import BenchModelSpec, bench_model
from .suites.paper import BenchPaperSpec, PaperResult, bench_paper

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
