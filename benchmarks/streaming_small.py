"""The streaming service beside plain pyzmq, by the size of a record: rate and CPU of both ends, in one run.

Plain pyzmq is a ROUTER that answers a request for a batch with as many bytes of a mapped file, in one frame that is
not copied, and a DEALER that keeps as many requests under way and touches nothing of what comes. It plans, finds, mixes
and checks nothing. Prints a line per demand (asked, measured, verdict) and exits 1 when one falls short.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import zmq
from bench import Line, at_least, cpu_s, make_parser, memory_folder, run
from streaming_rig import LOCAL, make_shards

STREAMS, WINDOW = 2, 8
SIZES = ((2_000, 256, 64_000_000, 0.5), (100_000, 32, 256_000_000, None), (2_000_000, 8, 256_000_000, None))
"""Bytes of a record, records of a batch, bytes of the dataset, and the share of plain pyzmq's rate that is asked."""


def serve(path: str) -> None:
    """Answer every request, a number of bytes, with as many of a mapped file."""
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.sndhwm = router.rcvhwm = 0
        print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin, zmq.POLLIN)
        at = 0
        while sys.stdin.fileno() not in (ready := dict(poller.poll())):
            if router not in ready:
                continue
            name, request = router.recv_multipart()
            nbytes = int.from_bytes(request, "little")
            at = at + nbytes if at + 2 * nbytes <= len(view) else 0
            router.send(name, zmq.SNDMORE)
            router.send(view[at : at + nbytes], copy=False)
        os._exit(0)


def ask(port: int, nbytes: int, pid: int, seconds: float) -> tuple[float, float]:
    """Return bytes a second, and CPU seconds a GB of both ends, with STREAMS connections and WINDOW requests."""
    context = zmq.Context()
    poller = zmq.Poller()
    dealers = [context.socket(zmq.DEALER) for _ in range(STREAMS)]
    request = nbytes.to_bytes(8, "little")
    for index, dealer in enumerate(dealers):
        dealer.connect(f"tcp://127.0.0.1:{port}")
        poller.register(dealer, zmq.POLLIN)
        for _ in range(WINDOW // STREAMS + (index < WINDOW % STREAMS)):
            dealer.send(request)
    came, started, used = 0, 0.0, 0.0
    begin = time.perf_counter() + 0.5
    end = begin + seconds
    while (now := time.perf_counter()) < end:
        if not started and now >= begin:
            came, started, used = 0, now, cpu_s([os.getpid(), pid])
        for dealer, _ in poller.poll():
            came += len(dealer.recv(copy=False))
            dealer.send(request)
    rate = came / (now - started)
    cost = 1e9 * (cpu_s([os.getpid(), pid]) - used) / came
    context.destroy(linger=0)
    return rate, cost


def plain(path: Path, nbytes: int, seconds: float) -> tuple[float, float]:
    """Run both ends of plain pyzmq in processes of their own."""
    script = [sys.executable, str(Path(__file__).resolve())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = LOCAL.storage.popen([*script, "--serve", str(path)], **pipes)
    try:
        assert server.stdout is not None
        orders = json.dumps([int(server.stdout.readline()), nbytes, server.pid, seconds])
        client = LOCAL.compute.popen([*script, "--ask", orders], **pipes)
        rate, cost = json.loads(client.communicate(timeout=60)[0])
        return rate, cost
    finally:
        server.kill()
        server.wait()


def sizes(folder: Path, turns: int, seconds: float) -> Iterator[Line]:
    """Compare both, in turns."""
    for record, batch, total, asked in SIZES:
        shards = make_shards(folder, record, total)
        whole = folder / f"plain-{record}"
        whole.write_bytes(bytes(batch * record * 16))
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        with LOCAL.daemon(shards) as daemon:
            for _ in range(turns):
                got = LOCAL.receive(
                    [daemon], streams=STREAMS, window=WINDOW, batch_size=batch, seconds=seconds, omit_s=0.5
                )
                ours.append((got.nbytes / got.seconds, got.cpu_s_per_gb))
                theirs.append(plain(whole, batch * record, seconds))
        rate, cost = (median(a[at] / b[at] for a, b in zip(ours, theirs, strict=True)) for at in (0, 1))
        ours_mb, theirs_mb = [1e-6 * median(one[0] for one in by) for by in (ours, theirs)]
        cpu = [median(one[1] for one in by) for by in (ours, theirs)]
        what = f"records of {record / 1000:g} kB, batches of {batch}: rate over plain pyzmq's"
        words = f"{ours_mb:.0f} of {theirs_mb:.0f} MB/s; CPU {cost:.2f}: {cpu[0]:.2f} of {cpu[1]:.2f} s/GB"
        yield at_least(what, asked, rate, f"{rate:.2f} ({words})", ours=ours, theirs=theirs)


def main() -> int:
    """Measure and print; return the exit status."""
    parser = make_parser(__doc__, "fewer and shorter turns")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    if options.ask:
        print(json.dumps(ask(*json.loads(options.ask))))
        return 0
    with memory_folder("small") as temporary:
        turns, seconds = (3, 1.0) if options.quick else (9, 2.0)
        return run({"sizes": lambda: sizes(temporary, turns, seconds)}, options, widths=(66, 8, 60))


if __name__ == "__main__":
    sys.exit(main())
