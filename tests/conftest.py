"""What the surroundings say about colors, widths, tokens and clusters is not for the tests.

This is read before any test imports what reads these variables.
"""

import os

for name in (
    # Of terminals and CI services: rich and typer would color and wrap what tests read.
    *("CLICOLOR_FORCE", "FORCE_COLOR", "GITHUB_ACTIONS", "NO_COLOR", "PY_COLORS"),
    *("TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"),
    # Of a server, a cluster or a torchrun around them.
    *("FANIN_SERVE_TOKEN", "PROMETHEUS_MULTIPROC_DIR", "RAY_ADDRESS"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "80"
# Servers of tests are on this machine, whatever proxy leads to others.
for name in ("no_proxy", "NO_PROXY"):
    others = [os.environ[name]] if os.environ.get(name) else []
    os.environ[name] = ",".join([*others, "127.0.0.1", "::1", "localhost"])
