"""What tests that compile something give their compiler."""

import os

SANITIZER = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")
"""Variables of tools/sanitize.sh, which a process needs that loads the library under it."""


def compiler_environment() -> dict[str, str]:
    """Return the environment without the sanitizers that tools/sanitize.sh loads into Python.

    Compilers are not clean under AddressSanitizer, and end.
    """
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
