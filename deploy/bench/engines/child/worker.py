"""One engine in a process of its own, which times its own runs; child_process.py is the other end.

Runs by path under any Python from 3.8 on that has NumPy and the engine's package: DeepSparse lives
in an environment where fanin cannot. Protocol: one JSON object per line on stdin, one reply per
line on stdout, which holds ``error`` when the request failed and ``missing`` when a package is not
installed.

{"do": "prepare", "kind", "threads", "x", "layer", "null"} -> {"version", "threads", "call_seconds"}
{"do": "run", "lead_in", "count", "numbers", "condition"}  -> {"nanoseconds": [...]}
{"do": "output", "file"}                                   -> {"shape", "dtype"}
{"do": "memory", "kind", "model", "sessions", "threads", "inputs"} -> see memory_probe.py

Inputs come through the mapped file ``x``, outputs go into ``file``; both are raw numbers. ``layer``
and ``null`` (a layer too small to matter, whose run is the cost of a call) have the input's
``shape``, its ``dtype`` if that is not float32, and what the kind needs.
"""

import gc
import json
import os
import sys
import time
from statistics import median

import numpy as np
from conditions import Conditions, wait_until_quiet  # beside this file, whose folder is searched
from memory_probe import probe
from runtimes import KINDS

_NULL_CALLS = 300


class Worker:
    """Answers the requests, each by the method of its name."""

    def prepare(self, request):
        """Load the layer, and time calls of the null layer."""
        kind, threads = KINDS[request["kind"]], request["threads"]
        null = kind(request["null"], threads)
        x = np.zeros(request["null"]["shape"], request["null"].get("dtype", "float32"))
        calls = [self._timed(null, x) for _ in range(_NULL_CALLS)]
        layer = request["layer"]
        self._layer = kind(layer, threads)
        self._conditions = Conditions(threads)
        # Writable, since torch warns of arrays that are not; asarray sheds the subclass.
        shape, dtype = tuple(layer["shape"]), layer.get("dtype", "float32")
        self._x = np.asarray(np.memmap(request["x"], dtype, "r+", shape=shape))
        return {
            "version": self._layer.version,
            "threads": self._layer.threads,
            "call_seconds": median(calls) / 1e9,
        }

    def run(self, request):
        """Run untimed for ``lead_in`` seconds, then time ``count`` runs one by one.

        Two ``numbers`` take turns as the first of the input, the first one before the last run.
        """
        end = time.perf_counter() + request["lead_in"]
        while time.perf_counter() < end:
            self._timed(self._layer, self._x)
        numbers, times = request["numbers"], []
        gc.disable()
        try:
            for left in range(request["count"] - 1, -1, -1):
                if numbers:
                    self._x.flat[0] = numbers[left % 2]
                self._conditions.prepare(request["condition"])
                times.append(self._timed(self._layer, self._x))
        finally:
            gc.enable()
        if self._layer.threads > 1:
            wait_until_quiet()
        return {"nanoseconds": times}

    def output(self, request):
        """Write the output of the last run."""
        y = self._layer.array(self._y)
        y.tofile(request["file"])
        return {"shape": y.shape, "dtype": str(y.dtype)}

    def memory(self, request):
        """Measure the memory of sessions."""
        return probe(**{name: value for name, value in request.items() if name != "do"})

    def _timed(self, layer, x):
        start = time.perf_counter_ns()
        self._y = layer.run(x)
        return time.perf_counter_ns() - start


def main():
    """Answer until stdin ends."""
    # Native code may print: the replies get a descriptor of their own, stdout becomes stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request["do"])(request)
        except ModuleNotFoundError as error:
            reply = {"error": str(error), "missing": error.name}
        except Exception as error:  # whatever an engine raises is its reason to be left out
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
