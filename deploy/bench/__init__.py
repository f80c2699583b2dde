"""Benchmarks of sparse against dense, with checked outputs and the spread of the times.

``docs/benchmarks.md`` says how the numbers are obtained and what they do not cover. Each folder
imports only from those below it:

    suites    what each benchmark measures, the report of its result, and calibration
    report    one model of a document and of its figure; Markdown, terminal, HTML page, SVG
    results   pure data: the envelope of all results, reading, writing, comparing
    measure   the timing loop, statistics, problems, the machine and its conditions
    engines   what is timed: the protocol, ONNX Runtime, kernels, other runtimes
"""

from .report.terminal import print_report
from .requirements import RequirementError
from .results.compare import ResultComparison, compare_results
from .results.result import Result, ResultFileError
from .suites.kernels import BenchKernelsSpec, KernelsResult, bench_kernels
from .suites.layer import BenchLayerSpec, bench_layer
from .suites.memory import BenchMemorySpec, MemoryResult, bench_memory
from .suites.model import BenchModelSpec, bench_model
from .suites.paper import BenchPaperSpec, PaperResult, bench_paper
from .suites.reports import load_result, report_of, save_result

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
    "load_result",
    "print_report",
    "report_of",
    "save_result",
]
