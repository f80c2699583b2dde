"""Let a frozen program be the Python that fanin starts processes with: ``PROGRAM -m fanin.…``.

The server's workers and trials, and the doctor's looks at a model, run as ``sys.executable -m``.
"""

import runpy
import sys

given = sys.argv[2:] if sys.argv[1:2] == ["-P"] else sys.argv[1:]
if given[:1] == ["-m"] and given[1:] and given[1].startswith("fanin."):
    sys.argv = given[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()
