"""The streaming service against iperf3 on the same link in the same minute; needs root and iperf3.

Goodput, distance and CPU are judged on one configuration, that of conf/loader/streaming.yaml. Prints a line per demand
(asked, measured, verdict) and exits 1 when one falls short. Ours and iperf3 take turns, for neighbours on the host come
and go; goodput, distance and CPU are judged by the interval of the turns' ratios, the other demands by medians.
`--quick` takes some ten minutes and leaves cells and turns out.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from statistics import median, quantiles

import yaml
from bench import REPO, Line, at_least, at_most, judge_ratios, make_parser, memory_folder, run, spread
from streaming_rig import LOCAL, Keys, Rig, Shards, make_jpeg, make_shards, open_rig, open_star, split
from streaming_sink import drain, on_processors

from harness.testbed.link import LinkKind
from loaders.streaming.keys import make_keys

_CONFIG = yaml.safe_load((REPO / "conf/loader/streaming.yaml").read_text())
RECOMMENDED = {name: _CONFIG[name] for name in ("streams", "slice_records", "warm_bytes", "verify")}
"""The loader's own configuration, for every demand on goodput, distance and CPU ..."""
RECOMMENDED["window"] = _CONFIG["prefetch_batches"]
FLOWS: int = RECOMMENDED["streams"]
"""... which iperf3 meets with as many flows."""
STREAMS = 8
TINY, SMALL, LARGE = 1000, 100_000, 2_000_000
BATCH_SIZE = 32
STEPS: dict[float, int] = {100.0: 3360, 34.8: 9216}
"""By milliseconds of a step: samples of an epoch with decoding, which lasts 10 s.

100 ms leave most of the link free. 34.8 ms is a batch's part of an A100's published step: 435 ms for 400 samples
(MLPerf Storage, ResNet-50).
"""
CPU_MOST = 1.5
"""CPU time per GB over iperf3's, with checksums."""
GOODPUT_RTT_MS = (0.1, 1.0, 10.0, 30.0, 150.0)
GOODPUT_GBIT = (1.0, 5.0)
FIGURE_RTT_MS = (0.1, 1.0, 10.0, 30.0)
MEMORY_MB = 200
LOSS_RTT_MS, LOSS_GBIT, LOSS_PCT = 57.0, 1.0, 0.1
LOSS_FLOWS = 32


class Bench:
    """Shards and links, made when they are first wanted."""

    def __init__(self, temporary: Path, cache: Path | None, kind: LinkKind, stack: ExitStack, *, quick: bool) -> None:
        self.quick, self.temporary, self._folder, self._kind = quick, temporary, cache or temporary, kind
        self._stack = stack

    @cached_property
    def rig(self) -> Rig:
        """Two namespaces and a link."""
        return self._stack.enter_context(open_rig(self._kind))

    @cached_property
    def keys(self) -> Keys:
        """A key, for a stream that is encrypted."""
        return Keys(*make_keys(self.temporary / "keys"))

    @cached_property
    def small(self) -> Shards:
        """Samples of 100 kB, half a gigabyte."""
        return make_shards(self._folder, SMALL, 512_000_000)

    @cached_property
    def large(self) -> Shards:
        """Samples of 2 MB, half a gigabyte."""
        return make_shards(self._folder, LARGE, 512_000_000)

    @cached_property
    def tiny(self) -> Shards:
        """Samples of 1 kB, 200,000 of them."""
        return make_shards(self._folder, TINY, 200_000 * TINY)

    def images(self, samples: int) -> Shards:
        """Return JPEGs of about 100 kB, which are made at the first call."""
        return make_shards(self._folder, SMALL, samples * SMALL, image=make_jpeg(SMALL))

    @cached_property
    def wan_epoch(self) -> Shards:
        """An epoch of 5 s at 1 Gbit/s."""
        return make_shards(self._folder, SMALL, 625_000_000)


def paired(values: Sequence[float], over: Sequence[float]) -> tuple[float, str]:
    """Return the median ratio of turns one right after the other, and it in words; their bracket is left open."""
    each = divide(values, over)
    low, _, high = quantiles(each, n=4)
    return median(each), f"{median(each):.2f} (half of the turns {low:.2f} to {high:.2f}"


def divide(values: Sequence[float], over: Sequence[float]) -> list[float]:
    """Return the ratio of each turn."""
    return [value / other for value, other in zip(values, over, strict=True)]


def goodput_cell(bench: Bench, rtt_ms: float, rate_gbit: float, asked: float) -> Line:
    """Take turns with iperf3 on one link."""
    rig, seconds = bench.rig, 2 if bench.quick else 5
    omit_s = 1 + round(20 * rtt_ms / 1e3)
    rig.set(rtt_ms, rate_gbit)
    ours, theirs = [], []
    with rig.daemon(bench.small) as daemon:
        for _ in range(3 if bench.quick else 5):
            ours.append(rig.receive([daemon], **RECOMMENDED, seconds=seconds, omit_s=omit_s).gbit)
            theirs.append(rig.iperf(flows=FLOWS, seconds=seconds, omit_s=omit_s).gbit)
    words = f"{median(ours):.3f} of {median(theirs):.3f} Gbit/s"
    what = f"goodput over iperf3's, {rate_gbit:g} Gbit/s, {rtt_ms:g} ms"
    return judge_ratios(what, f">= {asked:.2f}", divide(ours, theirs), words, ours=ours, theirs=theirs)


def goodput(bench: Bench) -> Iterator[Line]:
    """Fill the link as iperf3 does."""
    for rate_gbit in GOODPUT_GBIT[: 1 if bench.quick else None]:
        for rtt_ms in (0.1, 30.0, 150.0) if bench.quick else GOODPUT_RTT_MS:
            yield goodput_cell(bench, rtt_ms, rate_gbit, 0.97)


def fast(bench: Bench) -> Iterator[Line]:
    """Share two cores at 10 Gbit/s with the link's own relay."""
    yield goodput_cell(bench, 0.1, 10.0, 0.80)


def loss(bench: Bench) -> Iterator[Line]:
    """Lose packets on a far link: with bbr, against iperf3 with 32 bbr flows and without loss."""
    rig, seconds = bench.rig, 2 if bench.quick else 5
    lossy: dict[float, list[float]] = {0.0: [], LOSS_PCT: []}
    peers: dict[tuple[float, int, str], list[float]] = {
        (0.0, STREAMS, "cubic"): [],
        (LOSS_PCT, LOSS_FLOWS, "bbr"): [],
        (LOSS_PCT, FLOWS, "bbr"): [],
        (LOSS_PCT, LOSS_FLOWS, "cubic"): [],
        (LOSS_PCT, FLOWS, "cubic"): [],
    }
    epochs: dict[float, list[float]] = {0.0: [], LOSS_PCT: []}
    relay_cores: list[float] = []
    link = rig.link
    assert link is not None
    with (
        rig.daemon(bench.small, "--congestion", "bbr") as daemon,
        rig.daemon(bench.wan_epoch, "--congestion", "bbr") as epoch_daemon,
    ):
        for _ in range(2 if bench.quick else 3):
            for loss_pct, seen_gbit in lossy.items():
                rig.set(LOSS_RTT_MS, LOSS_GBIT, loss_pct)
                seen_gbit.append(rig.receive([daemon], seconds=seconds, omit_s=3, **RECOMMENDED).gbit)
                for (share, flows, control), seen in peers.items():
                    if share == loss_pct:
                        began, before = time.monotonic(), link.counters().cpu_s
                        got = rig.iperf(flows=flows, seconds=seconds, omit_s=3, congestion=control)
                        seen.append(got.gbit)
                        if (flows, control) == (LOSS_FLOWS, "bbr"):
                            relay_cores.append((link.counters().cpu_s - before) / (time.monotonic() - began))
                epochs[loss_pct].append(rig.receive([epoch_daemon], **RECOMMENDED).seconds)
    where = f"{LOSS_GBIT:g} Gbit/s, {LOSS_RTT_MS:g} ms"
    for loss_pct, flows, control, least in (
        (0.0, STREAMS, "cubic", 0.97),
        (LOSS_PCT, LOSS_FLOWS, "bbr", 0.90),
        (LOSS_PCT, FLOWS, "bbr", None),
    ):
        ours, theirs = median(lossy[loss_pct]), median(peers[loss_pct, flows, control])
        what = f"{where}, {loss_pct:g} % loss: bbr over iperf3's {flows} {control}"
        measured = f"{ours / theirs:.3f} ({ours:.3f} of {theirs:.3f} Gbit/s)"
        raw = {"ours": lossy[loss_pct], "theirs": peers[loss_pct, flows, control]}
        yield at_least(what, least, ours / theirs, measured, ".2f", **raw)
    for flows in (LOSS_FLOWS, FLOWS):
        measured = f"{median(peers[LOSS_PCT, flows, 'cubic']):.3f} Gbit/s"
        raw = {"gbit": peers[LOSS_PCT, flows, "cubic"]}
        yield Line(f"{where}, {LOSS_PCT:g} % loss: iperf3's {flows} cubic", "", measured, None, raw)
    yield Line("link's relay under iperf3's 32 bbr, cores", "", spread(relay_cores, 2), None, {"cores": relay_cores})
    with_loss, without = median(epochs[LOSS_PCT]), median(epochs[0.0])
    what = f"epoch of 625 MB: {LOSS_PCT:g} % loss over none"
    measured = f"{with_loss / without:.3f} ({with_loss:.2f} of {without:.2f} s)"
    yield at_most(what, 1.5, with_loss / without, measured, ".2f", lossy_s=epochs[LOSS_PCT], without_s=epochs[0.0])


def distance(bench: Bench) -> Iterator[Line]:
    """Compare settled epochs near and far, with decoding and a training step that waits; first epochs are shown."""
    for step_ms, samples in STEPS.items():
        yield from distance_of(bench, step_ms, samples)


def distance_of(bench: Bench, step_ms: float, samples: int) -> Iterator[Line]:
    """Compare epochs with a step of one length; a turn is one loader's epochs at every distance, by their median."""
    rig, first, waited = bench.rig, dict[float, list[float]](), dict[float, list[float]]()
    settled: dict[float, list[list[float]]] = {}
    orders = RECOMMENDED | {"batch_size": BATCH_SIZE, "step_ms": step_ms, "epochs": 2 if bench.quick else 4}
    mb_per_s = BATCH_SIZE * SMALL / step_ms / 1e3
    step = f"step of {step_ms:g} ms for {BATCH_SIZE} samples, {mb_per_s:.0f} MB/s or {0.8 * mb_per_s:.0f} % of the link"
    with rig.daemon(bench.images(samples)) as daemon:
        for turn in range(1 if bench.quick else 4):
            for rtt_ms in (0.1, 30.0, 150.0)[:: -1 if turn % 2 else 1]:
                rig.set(rtt_ms, 1.0)
                got = rig.receive([daemon], **orders)
                first.setdefault(rtt_ms, []).append(got.epoch_s[0])
                settled.setdefault(rtt_ms, []).append(got.epoch_s[1:])
                waited.setdefault(rtt_ms, []).extend(got.wait_s[1:])
    medians = {rtt_ms: [median(turn_s) for turn_s in by] for rtt_ms, by in settled.items()}
    near_s = median(medians[0.1])
    for rtt_ms, most in ((30.0, 1.02), (150.0, 1.05)):
        what = f"settled epoch of {near_s:.1f} s, decoded, {step}: {rtt_ms:g} over 0.1 ms"
        waits = f"waits {median(waited[rtt_ms]):.2f} s, near {median(waited[0.1]):.2f} s"
        ratios = divide(medians[rtt_ms], medians[0.1])
        yield judge_ratios(what, f"<= {most:.2f}", ratios, waits, near_s=settled[0.1], far_s=settled[rtt_ms])
    times = ", ".join(f"{median(by):.2f} s at {rtt_ms:g} ms" for rtt_ms, by in sorted(first.items()))
    raw = {"first_s": {str(rtt_ms): by for rtt_ms, by in first.items()}}
    yield Line(f"their first epochs, step {step_ms:g} ms", "", times, None, raw)


def distance_cpu(bench: Bench) -> Iterator[Line]:
    """Compare the CPU's cost near and far, and with iperf3's, in short turns: a neighbour moves it by a third.

    iperf3's start counts, which is 35 ms of CPU time, and ours does not: iperf3 runs longer, so that it is a twentieth.
    """
    rig = bench.rig
    with rig.daemon(bench.small) as daemon:
        for streams, is_judged in ((FLOWS, True), (STREAMS, False)):
            ours: dict[float, list[float]] = {0.1: [], 30.0: []}
            theirs: dict[float, list[float]] = {0.1: [], 30.0: []}
            turns = 6 if bench.quick else 12
            for turn in range(turns if is_judged else turns // 2):
                for rtt_ms in sorted(ours, reverse=bool(turn % 2)):
                    rig.set(rtt_ms, 1.0)
                    orders = RECOMMENDED | {"streams": streams}
                    got = rig.receive([daemon], **orders, seconds=2, omit_s=1 + 20 * rtt_ms / 1e3)
                    ours[rtt_ms].append(got.cpu_s_per_gb)
                    theirs[rtt_ms].append(rig.iperf(flows=streams, seconds=6).cpu_s_per_gb)
            what = f"CPU per GB, 1 Gbit/s, {streams} streams"
            ratios, theirs_ratio = divide(ours[30.0], ours[0.1]), median(divide(theirs[30.0], theirs[0.1]))
            more = f"{median(ours[30.0]):.3f} s at 30 ms; iperf3 {theirs_ratio:.3f}"
            asked = "<= 1.10" if is_judged else ""
            yield judge_ratios(f"{what}: 30 over 0.1 ms", asked, ratios, more, 2, ours=ours, theirs=theirs)
            for rtt_ms, ours_s in ours.items():
                more = f"{median(ours_s):.3f} of {median(theirs[rtt_ms]):.3f} s"
                asked = f"<= {CPU_MOST}" if is_judged else ""
                yield judge_ratios(
                    f"{what}, {rtt_ms:g} ms: over iperf3's", asked, divide(ours_s, theirs[rtt_ms]), more, 2
                )


def cpu(bench: Bench) -> Iterator[Line]:
    """Compare the CPU's cost on plain loopback, where nothing else takes time, with iperf3's right after each.

    A neighbour on the host moves either by a third from one second to the next: turns are short, and a
    demand takes three times as many as a figure without one.
    """
    ways: list[tuple[str, int, dict[str, object], Keys | None, float | None]] = [
        ("checksums", FLOWS, {}, None, CPU_MOST),
        ("checksums", STREAMS, {"streams": STREAMS}, None, None),
        ("no checksums", FLOWS, {"verify": False}, None, None),
        ("msgpack, checksums", FLOWS, {"wire": "msgpack"}, None, None),
        ("encrypted, checksums", FLOWS, {}, bench.keys, None),
    ]
    seen: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for turn in range(9 if bench.quick else 21):
        for name, streams, orders, keys, most in ways:
            if most is None and turn % 3:
                continue
            with LOCAL.daemon(bench.small, keys=keys) as daemon:
                got = LOCAL.receive([daemon], **(RECOMMENDED | orders), seconds=1, omit_s=0.5)
            theirs = LOCAL.iperf(flows=streams, seconds=1).cpu_s_per_gb
            seen.setdefault((name, streams), []).append((got.cpu_s_per_gb, got.gbit / 8, theirs))
    for name, streams, *_, most in ways:
        ours, speeds, theirs_s = zip(*seen[name, streams], strict=True)
        what, asked = f"CPU/GB over iperf3's, {streams} streams: {name}", "" if most is None else f"<= {most}"
        more = f"{median(ours):.3f} of {median(theirs_s):.3f} s, {median(speeds):.1f} GB/s"
        yield judge_ratios(what, asked, divide(ours, theirs_s), more, 2, ours=ours, theirs=theirs_s)


def figures(bench: Bench) -> Iterator[Line]:
    """Measure the paper's figures 7 and 8: sample sizes and streams, by distance."""
    for name, shards, batch_size in (("100 kB", bench.small, 32), ("2 MB", bench.large, 8)):
        for streams in (1, 2):
            times = []
            with bench.rig.daemon(shards) as daemon:
                for rtt_ms in (0.1, 30.0) if bench.quick else FIGURE_RTT_MS:
                    bench.rig.set(rtt_ms, 5.0)
                    got = bench.rig.receive(
                        [daemon],
                        streams=streams,
                        batch_size=batch_size,
                        slice_records=min(8, batch_size),
                        window="auto",
                        warm_bytes=round(2 * rtt_ms / 1e3 * 5e9 / 8),
                    )
                    times.append(f"{got.seconds:.2f} s at {rtt_ms:g} ms")
            what = f"0.5 GB of {name}, {streams} stream{'s'[: streams - 1]}, 5 Gbit/s"
            yield Line(what, "", ", ".join(times))


def workers(bench: Bench) -> Iterator[Line]:
    """Serialise and send as EMLIO's daemon does, with one and two threads, to a sink that costs next to nothing."""
    ways = {"one": (1, 1), "two": (2, 2), "wide": (1, 2)}
    for name, shards, batch_size in (("100 kB", bench.small, 32), ("2 MB", bench.large, 8)):
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        busy: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(2 if bench.quick else 6):
            for way, (threads, processors) in list(ways.items())[:: -1 if turn % 2 else 1]:
                options = ("--threads", str(threads), "--high-water-mark", "16")
                with LOCAL.daemon(shards, *options) as daemon, on_processors(processors, daemon.pid):
                    speed, cores = drain(daemon, shards, streams=threads, batch_size=batch_size, seconds=1.5)
                speeds[way].append(speed)
                busy[way].append(cores)
        raw = {"gb_s": speeds, "busy": busy}
        for other, asked, where in (("one", ">= 1.6", "2 processors over 1 on 1"), ("wide", "", "2 processors over 1")):
            more = f"{median(speeds['two']):.2f} of {median(speeds[other]):.2f} GB/s, {median(busy['two']):.2f} of "
            more += f"{median(busy[other]):.2f} processors"
            ratios = divide(speeds["two"], speeds[other])
            yield judge_ratios(f"msgpack, {name}: 2 threads on {where}", asked, ratios, more, 2, **raw)


def mixing(bench: Bench) -> Iterator[Line]:
    """Compare what a sample costs the CPU with records shuffled one by one, and with slices left together."""
    seen: dict[int, list[float]] = {0: [], 4096: []}
    with LOCAL.daemon(bench.tiny) as daemon:
        for turn in range(4 if bench.quick else 10):
            for shuffle_window in sorted(seen, reverse=bool(turn % 2)):
                orders = {"streams": FLOWS, "batch_size": 256, "shuffle_window": shuffle_window}
                got = LOCAL.receive([daemon], window=8, seconds=1, omit_s=0.5, **orders)
                seen[shuffle_window].append((got.receiver_cpu_s + got.daemon_cpu_s) / got.samples)
    ratio, words = paired(seen[4096], seen[0])
    rates = " and ".join(f"{1 / median(by):,.0f}" for by in seen.values())
    measured = f"{words}; {rates} samples a CPU second)"
    yield at_most("CPU a sample of 1 kB: shuffle_window 4096 over 0", 3.5, ratio, measured, cpu_s=seen)


def memory(bench: Bench) -> Iterator[Line]:
    """Watch the daemon's memory over epochs, and with a reader that asks and does not take."""
    with LOCAL.daemon(bench.small) as daemon:
        after = LOCAL.receive([daemon], streams=STREAMS, window=16, epochs=10).anonymous_mb
    yield at_most("daemon's memory over ten epochs, MB", MEMORY_MB, max(after), spread(after, 0), mb=after)
    for wire in ("raw", "msgpack"):
        with LOCAL.daemon(bench.small) as daemon:
            orders = {"streams": STREAMS, "window": 256, "stop_reading": True, "seconds": 5.0, "wire": wire}
            (after_stop,) = LOCAL.receive([daemon], **orders).anonymous_mb
        what = f"daemon's memory, reader that stopped, {wire}, MB"
        yield at_most(what, MEMORY_MB, after_stop, f"{after_stop:.0f}")


def daemons(bench: Bench) -> Iterator[Line]:
    """Receive from several daemons, each behind a capped link of its own."""
    parts = split(bench.small, 3)
    seen: dict[int, list[float]] = {1: [], 2: [], 3: []}
    theirs: dict[int, list[float]] = {1: [], 2: [], 3: []}
    seconds = 2 if bench.quick else 4
    with open_star(3, rate_gbit=1.0) as star:
        for count in (1, 2, 3) * (2 if bench.quick else 3):
            rigs = star[:count]
            with ExitStack() as stack:
                pairs = zip(rigs, parts, strict=False)
                served = [stack.enter_context(rig.daemon(part)) for rig, part in pairs]
                got = star[0].receive(served, streams=4, window=8, seconds=seconds, omit_s=1)
            seen[count].append(got.gbit)
            theirs[count].append(Rig.iperf_together(rigs, flows=4, seconds=seconds, omit_s=1))
    for count in (2, 3):
        linear, theirs_linear = (median(by[count]) / median(by[1]) / count for by in (seen, theirs))
        measured = f"{linear:.3f} ({median(seen[count]):.3f} Gbit/s; iperf3 {theirs_linear:.3f})"
        yield at_least(f"{count} daemons, 1 Gbit/s each: of linear", 0.95, linear, measured, ours=seen, theirs=theirs)


PARTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    each.__name__: each
    for each in (goodput, fast, loss, distance, distance_cpu, cpu, figures, workers, mixing, memory, daemons)
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = make_parser(__doc__, "fewer cells and repeats", PARTS)
    parser.add_argument("--kind", choices=("auto", "netem", "relay"), default="auto", help="kind of link")
    parser.add_argument("--cache", type=Path, help="folder in which the shards stay (default: a temporary one)")
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        sys.exit("benchmarks/streaming.py: iperf3 is not installed: apt-get install iperf3")
    # Shards lie in memory: nobody's dropping of caches is measured either.
    with memory_folder("streaming") as temporary, ExitStack() as stack:
        bench = Bench(temporary, options.cache, options.kind, stack, quick=options.quick)
        return run({name: partial(part, bench) for name, part in PARTS.items()}, options)


if __name__ == "__main__":
    sys.exit(main())
