"""A load with known edges, in a process of its own: `python -m energymon.cli.load gpu | cpu`.

It prints a line of JSON when it is warm, reads the spans in which it is to be busy, [[begin, end], …] in monotonic ns,
and prints those in which it was. `gpu` multiplies matrices on CUDA's first device; `cpu` spins on all processors but
one, which is for reading the sensors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from energymon.clock.monotonic import NS

_SIDE: Final = 4096
"""Rows and columns of a matrix: 0.14 TFLOP a product."""
_BURST_S: Final = 0.001
"""About how long the device is given work for at a time, so that an edge is no later than this."""
_WARM_S: Final = 1.0

Spans = Sequence[tuple[int, int]]


def _wait_until(at_ns: int) -> None:
    # Spinning until then would be load before its edge.
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / NS)


def _busy(spans: Spans, work: Callable[[], object]) -> list[tuple[int, int]]:
    """Do the work again and again in each span; return the spans as they were."""
    done: list[tuple[int, int]] = []
    for begin_ns, end_ns in spans:
        _wait_until(begin_ns)
        began_ns = now_ns = time.monotonic_ns()
        while now_ns < end_ns:
            work()
            now_ns = time.monotonic_ns()
        if now_ns > began_ns:
            done.append((began_ns, now_ns))
    return done


def _matrix_products() -> Callable[[], object]:
    """Return the function that keeps CUDA's first device busy for about a millisecond, once the device is warm."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no CUDA device; expected a build for CUDA and its driver")
    one = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.float16)
    out = torch.empty_like(one)

    def multiply(times: int) -> float:
        begin_ns = time.monotonic_ns()
        for _ in range(times):
            torch.mm(one, one, out=out)
        torch.cuda.synchronize()
        return (time.monotonic_ns() - begin_ns) / NS

    until_ns = time.monotonic_ns() + round(_WARM_S * NS)
    while time.monotonic_ns() < until_ns:
        multiply(10)
    return partial(multiply, max(1, round(_BURST_S / (multiply(20) / 20))))


def _spin(spans: Spans) -> list[tuple[int, int]]:
    """Spin on every processor but one; return the spans of one of them."""
    processors = sorted(os.sched_getaffinity(0))
    children = []
    for processor in processors[1:-1] if len(processors) > 1 else []:
        pid = os.fork()
        if not pid:
            os.sched_setaffinity(0, {processor})
            _busy(spans, lambda: None)
            os._exit(0)
        children.append(pid)
    os.sched_setaffinity(0, {processors[-1]})
    done = _busy(spans, lambda: None)
    for pid in children:
        os.waitpid(pid, 0)
    return done


def main() -> int:
    """Be the load; return the exit status."""
    kind = sys.argv[1]
    try:
        burst = _matrix_products() if kind == "gpu" else None
    except (ImportError, RuntimeError) as error:
        print(json.dumps({"ready": False, "message": str(error)}), flush=True)
        return 1
    print(json.dumps({"ready": True}), flush=True)
    if not (line := sys.stdin.readline()):
        return 0
    spans = [(int(begin_ns), int(end_ns)) for begin_ns, end_ns in json.loads(line)]
    print(json.dumps(_busy(spans, burst) if burst else _spin(spans)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
