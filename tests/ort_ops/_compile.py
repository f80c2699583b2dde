"""The environment for compilers that tests run."""

import os

SANITIZER = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")
"""Variables that tools/sanitize.sh sets for processes that load the sanitized library."""


def compiler_environment() -> dict[str, str]:
    """Return the environment without the sanitizers that tools/sanitize.sh loads into Python.

    Compilers are not clean under AddressSanitizer, and end.
    """
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
