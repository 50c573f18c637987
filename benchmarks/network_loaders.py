"""The loaders of network systems in a tight loop, beside iperf3 on the same link; needs root and iperf3.

Each loader of `conf/loader` yields encoded records as quickly as it can at 1 Gbit/s, near and far, through its own
server as the harness starts it. Beside it stands the server's rate without a link. Prints a line per demand (asked,
measured, verdict) and exits 1 when one falls short. `--quick` leaves repeats out.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from bench import HERE, REPO, Line, at_least, make_parser, memory_folder, run, spread
from network_loaders_receiver import Orders, Received
from streaming_rig import PATIENCE_S, Place, Rig, Shards, make_shards, open_rig

from harness.config.command_line import compose_config
from harness.config.experiment import experiment_from
from harness.config.regime import Regime
from harness.config.specs import LoaderSpec
from harness.config.validation import parse
from harness.errors import TestbedError
from harness.run.daemon import Keys, RunningDaemon, make_keys, serving
from harness.run.prepare import daemon_environment, prepare_in, python_of
from harness.testbed.base import Node
from harness.testbed.link import LinkKind

LOADERS = ("nosql", "mosaic", "tfdata", "streaming")
"""Of conf/loader."""
RATE_GBIT = 1.0
RTT_MS = (0.1, 20.0, 150.0)
ASKED: dict[str, dict[float, float]] = {"nosql": {0.1: 0.90, 20.0: 0.90, 150.0: 0.80}}
"""Of iperf3's goodput, or of the server's own rate where that is lower."""
FLOWS = 4
"""Of iperf3, which fills the link with them at every distance."""
BATCH_SIZE = 32
SILENCE_S = 120.0
"""A loader waits that long for a batch; workers may start slowly."""
SAMPLE_BYTES = 115_000
"""Average size of an image in the Cassandra-DALI paper, section 4.2."""
UNEQUAL = "wan_150ms_unequal"
ORDERS: tuple[tuple[str, dict[str, Any], dict[str, Any], float | None], ...] = (
    ("nosql", {"out_of_order": True}, {"out_of_order": False}, 1.5),
    ("streaming", {"order": "sample", "streams": 4}, {"order": "strict", "streams": 4}, None),
)
"""Loader, its arguments out of order and in order, and how many times as quick the first is asked to be."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs for a loader."""

    spec: LoaderSpec
    daemon: RunningDaemon
    keys: Keys | None


class Bench:
    """Data and links, made when they are first wanted."""

    def __init__(self, folder: Path, kind: LinkKind, stack: ExitStack, *, quick: bool) -> None:
        self.quick, self._folder, self._kind, self._stack = quick, folder, kind, stack
        self.turns = 2 if quick else 3
        self.seconds = 4.0 if quick else 10.0
        self.warm_s = 10.0 if quick else 30.0
        """Of a turn that is not counted: a server in Java compiles its code meanwhile."""

    @cached_property
    def rig(self) -> Rig:
        """Two namespaces and a link."""
        return self._stack.enter_context(open_rig(self._kind))

    @cached_property
    def relayed(self) -> Rig:
        """Two more, with the delay line, which alone has paths."""
        return self._stack.enter_context(open_rig("relay"))

    @cached_property
    def shards(self) -> Shards:
        """The dataset as TFRecord shards, which every server has or makes its own form of."""
        return make_shards(self._folder, SAMPLE_BYTES, 512_000_000 if self.quick else 1_000_000_000)

    @cache  # noqa: B019  one object lives as long as the process
    def data(self, module: str) -> Path:
        """Return what a server reads: the shards, or the form of them that its module makes."""
        if getattr(found := importlib.import_module(module), "FORM", None) is None:
            return self.shards.root
        folder, environment = self._folder / module, daemon_environment(module)
        folder.mkdir()
        prepare = found.prepare if environment is None else prepare_in(environment, module)
        prepare(self.shards.root, folder, lambda *_: None)
        return folder

    @contextmanager
    def serve(self, name: str, rig: Rig) -> Iterator[Served]:
        """Run the server of a loader on the storage side as the harness does."""
        spec = load_spec(name)
        module, run_id = str(spec.daemon["module"]), uuid.uuid4().hex[:8]
        keys = make_keys(module, self._folder / f"keys-{run_id}") if spec.secure else None
        node = Node("storage", run_id, rig.storage.address, namespace=rig.storage.namespace)
        # Buffers are sized for the farthest link.
        regime = Regime(name="far", rtt_ms=max(RTT_MS), rate_gbit=RATE_GBIT)
        log = self._folder / f"{name}-{run_id}.log"
        with serving(
            node, rig.storage.address, self.data(module), spec.daemon, log, keys=keys, regime=regime
        ) as daemon:
            yield Served(spec, daemon, keys)

    def receive(self, served: Served, place: Place, omit_s: float, **changed: Any) -> Received:
        """Read in a tight loop on the compute side; raise TestbedError when the receiver fails."""
        spec = served.spec
        arguments = {**spec.params, **changed, "decode": "raw", "batch_size": BATCH_SIZE, "seed": 0}
        arguments |= {"endpoint": served.daemon.endpoint, "timeout_s": SILENCE_S}
        if served.keys is not None:
            arguments["keys"] = str(served.keys.client)
        orders = Orders(spec.target, arguments, [served.daemon.child.pid], self.seconds, omit_s)
        # Without this folder: its streaming.py has the name of MosaicML's package.
        python = ["env", f"PYTHONPATH={REPO}", python_of(spec.environment), "-P"]
        argv = [*python, str(HERE / "network_loaders_receiver.py")]
        with (self._folder / "receiver.log").open("w+") as log:
            process = place.popen(argv, stdin=-1, stdout=-1, stderr=log)
            try:
                said, _ = process.communicate(json.dumps(asdict(orders)), timeout=PATIENCE_S)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            if process.returncode:
                raise TestbedError(f"{spec.target}: the receiver failed: {' '.join(log.read().splitlines()[-3:])}")
        return Received(**json.loads(said))


@cache
def load_spec(name: str) -> LoaderSpec:
    """Return a loader of conf/loader as an experiment gets it."""
    config = compose_config("config", ["+experiment=smoke", f"+loader@loaders.measured={name}"])
    return experiment_from(config).loaders["measured"]


def tight_loop(bench: Bench, name: str) -> Iterator[Line]:
    """Take turns with iperf3 at each distance, and with a receiver beside the server."""
    everywhere: list[Received] = []
    with bench.serve(name, bench.rig) as served:
        bench.receive(served, bench.rig.storage, omit_s=bench.warm_s)
        for rtt_ms in RTT_MS:
            omit_s = 1 + round(20 * rtt_ms / 1e3)
            bench.rig.set(rtt_ms, RATE_GBIT)
            ours, theirs, near = [], [], []
            for _ in range(bench.turns):
                ours.append(bench.receive(served, bench.rig.compute, omit_s))
                theirs.append(bench.rig.iperf(flows=FLOWS, seconds=bench.seconds / 2, omit_s=omit_s))
                near.append(bench.receive(served, bench.rig.storage, omit_s=1))
            ours_gbit, theirs_gbit, near_gbit = (median(got.gbit for got in each) for each in (ours, theirs, near))
            bound_gbit, bound = min((theirs_gbit, "iperf3"), (near_gbit, "server and loader without a link"))
            measured = (
                f"{ours_gbit / bound_gbit:.3f} ({ours_gbit:.3f} Gbit/s, iperf3 {theirs_gbit:.3f}, without a link "
            )
            measured += (
                f"{near_gbit:.2f}; CPU s/GB: {cpu(ours)}, iperf3 {median(each.cpu_s_per_gb for each in theirs):.2f})"
            )
            what = f"{name}, {rtt_ms:g} ms: goodput over that of {bound}"
            asked = ASKED.get(name, {}).get(rtt_ms)
            yield at_least(what, asked, ours_gbit / bound_gbit, measured, ".2f", ours=ours, theirs=theirs, near=near)
            everywhere += near
    measured = f"{spread((got.gbit for got in everywhere), 2)} Gbit/s; CPU s/GB: {cpu(everywhere)}"
    yield Line(f"{name}, without a link", "", measured, None, {"near": everywhere})


def cpu(measured: list[Received]) -> str:
    """Write the CPU time per GB."""
    server, loader = (
        median(1e9 * part(got) / max(1, got.nbytes) for got in measured)
        for part in (lambda got: got.server_cpu_s, lambda got: got.loader_cpu_s)
    )
    return f"server {server:.2f}, loader {loader:.2f}"


def unequal(bench: Bench) -> Iterator[Line]:
    """Compare batches out of order and in order, where connections take unequal paths."""
    section = yaml.safe_load((REPO / f"conf/regime/{UNEQUAL}.yaml").read_text())
    regime, link = parse(Regime, {**section, "name": UNEQUAL}), bench.relayed.link
    assert link is not None
    omit_s = 2 + round(20 * regime.rtt_ms / 1e3)
    for name, out_of_order, in_order, asked in ORDERS:
        seen: dict[str, list[Received]] = {"out of order": [], "in order": []}
        with bench.serve(name, bench.relayed) as served:
            bench.receive(served, bench.relayed.storage, omit_s=bench.warm_s)
            link.set(regime)
            for _ in range(bench.turns):
                for how, arguments in zip(seen, (out_of_order, in_order), strict=True):
                    seen[how].append(bench.receive(served, bench.relayed.compute, omit_s, **arguments))
        quick, slow = (median(got.gbit for got in each) for each in seen.values())
        waits = [median(got.longest_s for got in each) for each in seen.values()]
        measured = (
            f"{quick / slow:.2f} ({quick:.3f} of {slow:.3f} Gbit/s; longest wait {waits[0]:.2f} of {waits[1]:.2f} s)"
        )
        what = f"{name}, {UNEQUAL}: out of order over in order"
        yield at_least(what, asked, quick / slow, measured, ".1f", **seen)
    theirs = [bench.relayed.iperf(flows=FLOWS, seconds=bench.seconds, omit_s=omit_s).gbit for _ in range(bench.turns)]
    yield Line(f"iperf3, {UNEQUAL}, {FLOWS} flows", "", f"{spread(theirs)} Gbit/s", None, {"gbit": theirs})


PARTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    **{name: partial(tight_loop, name=name) for name in LOADERS},
    "unequal": unequal,
}


def main() -> int:
    """Measure and print; return the exit status."""
    parser = make_parser(__doc__, "fewer and shorter repeats", PARTS)
    parser.add_argument("--kind", choices=("auto", "netem", "relay"), default="auto", help="kind of link")
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        sys.exit("benchmarks/network_loaders.py: iperf3 is not installed: apt-get install iperf3")
    # The data lies in memory, as do the files that servers write.
    with memory_folder("network") as folder, ExitStack() as stack:
        bench = Bench(folder, options.kind, stack, quick=options.quick)
        return run({name: partial(part, bench) for name, part in PARTS.items()}, options)


if __name__ == "__main__":
    sys.exit(main())
