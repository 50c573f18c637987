"""What a reader must know before the figures: emulation, estimates, mounts, the link's own cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.cell.messages import AcceleratorRecord
from harness.cell.skipped import id_list
from harness.report.labels import joules, megabytes, percent, seconds, significant, spell
from harness.report.measurements import find_base
from harness.report.summary import Group, Stat
from harness.results.cells import CellResult, EnergyRecord, HostRecord
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results
from harness.testbed.caches import MAPPED_STAY

MOUNTS = {
    "nfs4": "kernel NFSv4, as in the paper",
    "sshfs": "sshfs (the paper mounts NFSv4)",
    "local": "local files, no mount",
}


LINKS = {"relay": "a user-space delay line", "netem": "the kernel's netem"}


@dataclass(frozen=True, slots=True)
class Caveat:
    """One thing to know, under a word that says what it is about."""

    topic: str
    text: str
    weakens: bool = False
    """Whether it limits what the figures can show, as emulation and estimates do."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """What the link itself cost per epoch."""

    cpu_s: float
    """Median CPU time of the delay line in s; 0 for a link that the kernel makes."""
    joules: float | None
    """Its CPU joules net of idle; None where they are not known."""
    share: float | None
    """Median of the delay line's joules over all of the epoch's."""
    drops: int
    """Packets dropped in the delay queue, all epochs together."""


def list_caveats(results: Results, groups: Sequence[Group]) -> tuple[Caveat, ...]:
    """Return what limits the figures first, then what explains them."""
    found = [
        *_accelerator(results),
        *_energy(groups),
        *_idle(results),
        *_skipped(results),
        *_preparations(results),
        *_placement(results),
        *_ranks(results),
        *_memory(results),
        *_mounts(results),
        *_link(results),
        *_mapped(results),
        *_other_runs(results),
        *_elsewhere(results),
        *_measured_again(results),
        *_notes(results),
    ]
    return tuple(sorted(found, key=lambda caveat: not caveat.weakens))


def _accelerator(results: Results) -> Iterable[Caveat]:
    found = dict.fromkeys(cell.accelerator for cell in results.cells if cell.accelerator)
    labels = ", ".join(found)
    if not labels:
        return
    if not results.emulated:
        if all(label.startswith("none:") for label in found):
            yield Caveat("accelerator", "No training: batches are taken as fast as they come.")
        else:
            yield Caveat("accelerator", f"Real training steps on {labels}.")
        return
    names = [label.removeprefix("emulated:").strip() for label in found]
    assumed = [name.startswith("assumed") for name in names]
    if len(found) > 1:
        workloads = {(cell.accelerator, spell(cell.workload)): None for cell in results.cells}
        names = [
            f"{name} ({', '.join(workload for of, workload in workloads if of == label)})"
            for name, label in zip(names, found, strict=True)
        ]
    source = "is assumed, not published" if all(assumed) else "is published" if not any(assumed) else "is as stated"
    text = f"Emulated {', '.join(names)}: how long a step lasts {source}; nothing is trained."
    citations = dict.fromkeys(citation.rstrip(".") for cell in results.cells for citation in _citations(cell))
    yield Caveat("accelerator", " ".join([text, *(f"{citation}." for citation in citations)]), weakens=True)


def _citations(cell: CellResult) -> list[str]:
    accelerator = cell.record.accelerator if cell.record else AcceleratorRecord()
    return [one for one in (accelerator.citation, accelerator.power_citation) if one]


def _energy(groups: Sequence[Group]) -> Iterable[Caveat]:
    rows = [row for group in groups for row in group.rows]
    if not rows:
        return
    estimated = [domain for domain in DOMAINS if any(domain in row.estimated for row in rows)]
    absent = [domain for domain in DOMAINS if not any(domain in row.joules for row in rows)]
    sources = dict.fromkeys(
        f"{domain} from {source}"
        for row in rows
        for domain, source in row.sources.items()
        if domain not in row.estimated
    )
    parts: list[str] = []
    if estimated:
        parts.append(f"The joules of {_words(estimated)} are an estimate, not a measurement; no claim rests on them.")
    if absent:
        parts.append(f"No sensor for {_words(absent)}: not in the totals.")
    if sources:
        parts.append(f"Measured: {', '.join(sources)}.")
    yield Caveat("energy", " ".join(parts), weakens=bool(estimated or absent))


def _idle(results: Results) -> Iterable[Caveat]:
    """Say from which idle power joules are net, or why they are not; of the last session."""
    agents: list[EnergyRecord | HostRecord] = []
    for cell in results.cells:
        agents += [cell.record.energy, *cell.record.hosts] if cell.record else []
    taken = {one.idle[0].node: one for one in agents if one.idle}
    limit = results.experiment.checks.idle_cpu_pct / 100
    for host, one in taken.items():
        if one.idle_cpu_util is not None and one.idle_cpu_util > limit:
            text = f"The CPUs of {host} were {percent(one.idle_cpu_util)} busy while its idle power was measured"
            expected = f"expected at most {percent(limit)} (checks.idle_cpu_pct): joules net of idle are unknown."
            yield Caveat("idle", f"{text}, {expected}", weakens=True)
        else:
            names = (of.domain if of.device == of.domain else f"{of.device} {of.domain}" for of in one.idle)
            watts = ", ".join(f"{significant(of.watts)} W ({name})" for of, name in zip(one.idle, names, strict=True))
            kind = ", an estimate" if all(of.error_w is None for of in one.idle) else ""
            yield Caveat("idle", f"Before the run {host} drew {watts}{kind}; net joules are what an epoch drew beyond.")


def _skipped(results: Results) -> Iterable[Caveat]:
    field = next(iter(results.sessions.values()), {}).get("dataset", {}).get("skipped")
    files = (field.get("value") if isinstance(field, dict) else None) or []
    if files:
        named = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
        many = f"{len(files)} broken files were" if len(files) > 1 else "1 broken file was"
        yield Caveat("dataset", f"{many} left out for every loader: {named}.", weakens=True)
    by_loader: dict[str, dict[int, str]] = {}
    for cell in results.cells:
        if cell.skipped:
            by_loader.setdefault(cell.loader, {}).update(cell.skipped)
    for loader, samples in by_loader.items():
        many = "1 sample" if len(samples) == 1 else f"{len(samples)} samples"
        first = min(samples)
        yield Caveat(
            spell(loader),
            f"{many} skipped by policy (on_error=skip): {id_list(samples)}. The first: {samples[first].rstrip('.')}.",
            weakens=True,
        )


def _preparations(results: Results) -> Iterable[Caveat]:
    """Say what converting to shards and to forms of them cost, and what that is an epoch of those who read them."""
    for one in results.preparations:
        streamed = {
            key
            for key, loader in results.experiment.loaders.items()
            if loader.reads == "stream" and one.module in ("", loader.daemon.get("module"))
        }
        read = sum(row.loader in streamed and row.dataset == one.dataset for row in results.rows)
        estimate = " (estimate)" if one.estimated else ""
        energy = "" if one.joules is None else f", {joules(one.joules)}{estimate}"
        cost = f"{seconds(one.seconds)}, {seconds(one.cpu_s)} of CPU{energy}"
        before, after = ("shards", one.form) if one.form else ("files", "shards")
        sizes = f"{megabytes(one.raw_bytes)} of {before} are {megabytes(one.shard_bytes)} of {after}"
        parts = [(1, "over one epoch"), (read, f"over the {read} of this run"), (100, "over 100")]
        shares = []
        for count, over in dict(parts).items():
            if count:
                share = seconds(one.seconds / count)
                share += "" if one.joules is None else f" and {joules(one.joules / count)}"
                shares.append(f"{share} {over}")
        yield Caveat(
            one.form or "shards",
            f"Converting {one.dataset} took {cost}, once: {sizes}. To an epoch that adds {', '.join(shares)}.",
        )


def _placement(results: Results) -> Iterable[Caveat]:
    if results.experiment.placement == "local":
        yield Caveat("placement", "All samples lie on the compute node, whatever the link.")
    if results.experiment.placement == "sharded":
        text = "Each of two compute nodes has half of the samples, and reads the others over the link."
        yield Caveat("placement", text)
    far = next((cell.record.placement for cell in results.cells if cell.record), None)
    if far and far.storages > 1:
        yield Caveat("placement", f"{far.storages} storage hosts share the remote samples.")
    if results.experiment.placement != "half":
        return
    total = next((row.samples for row in results.rows if row.samples), None)
    if far and total:
        here = total - far.remote_samples
        yield Caveat(
            "placement",
            f"{here} of {total} samples lie on the compute node, the same for every loader; the rest "
            f"({megabytes(far.remote_bytes)}) comes over the link.",
        )


def _ranks(results: Results) -> Iterable[Caveat]:
    records = [cell.record for cell in results.cells if cell.record and cell.record.ranks]
    for ranks, nodes, gradients in dict.fromkeys(
        (len(one.ranks), len({rank.address for rank in one.ranks}), one.accelerator.gradient_bytes) for one in records
    ):
        where = "one node" if nodes == 1 else f"{nodes} nodes"
        told = "Nothing is trained, so no gradients are synchronised."
        if gradients is not None:
            told = f"Every step waits until {megabytes(gradients)} of gradients are all-reduced."
        yield Caveat("ranks", f"{ranks} ranks on {where} share every epoch. {told}")


def _memory(results: Results) -> Iterable[Caveat]:
    limits = dict.fromkeys(cell.record.memory for cell in results.cells if cell.record and cell.record.memory)
    for limit_bytes in dict.fromkeys(limit.limit_bytes for limit in limits):
        text = (
            f"The processes of a cell had {megabytes(limit_bytes)} of memory together, the page cache of what they read"
        )
        yield Caveat("memory", f"{text} counted.")
    served = [(cell.loader, cell.record.daemon_memory) for cell in results.cells if cell.record]
    for loader, limit in dict.fromkeys((loader, limit.limit_bytes) for loader, limit in served if limit is not None):
        yield Caveat("memory", f"The daemons of {spell(loader)} had {megabytes(limit)}, their page cache counted.")
    if results.experiment.testbed.cold == "cell":
        yield Caveat("caches", "Cold before a cell's first epoch alone: later ones find cached files.")


def _mapped(results: Results) -> Iterable[Caveat]:
    kept = {spell(cell.loader) for cell in results.cells if cell.record and MAPPED_STAY in cell.record.caches}
    if kept:
        text = f"Pages that processes map could not be dropped before epochs of {', '.join(sorted(kept))}"
        yield Caveat("caches", f"{text}: those epochs read less from disk than others.", weakens=True)


def _other_runs(results: Results) -> Iterable[Caveat]:
    crowded = [check for check in results.checks if check.rule == "alone" and check.verdict == "warn"]
    if crowded:
        many = "1 epoch" if len(crowded) == 1 else f"{len(crowded)} epochs"
        text = f"Another run was on this machine during {many}: each counts the CPU joules of both."
        yield Caveat("energy", text, weakens=True)


def _elsewhere(results: Results) -> Iterable[Caveat]:
    found = [check for check in results.checks if check.rule == "same_place" and check.verdict == "warn"]
    for actual in dict.fromkeys(check.actual for check in found):
        many = sum(check.actual == actual for check in found)
        text = f"{many} of {len(results.cells)} cells were measured elsewhere than the first: {actual}."
        yield Caveat("provenance", text, weakens=True)


def _measured_again(results: Results) -> Iterable[Caveat]:
    again = sum(cell.measured_again > 0 for cell in results.cells)
    if again:
        which = "1 cell was" if again == 1 else f"{again} cells were"
        text = f"{which} measured again because a rule refused its rows; cells/*.invalid-N has the earlier measurement."
        yield Caveat("cells", text)


def _mounts(results: Results) -> Iterable[Caveat]:
    remote = {
        cell.mount for cell in results.cells if cell.mount and not results.experiment.regimes[cell.regime].is_local
    }
    for mount in sorted(mount for mount in remote if mount != "local" and not mount.startswith("none")):
        yield Caveat("mount", f"Remote files are read over {MOUNTS.get(mount, mount)}.")


def _link(results: Results) -> Iterable[Caveat]:
    kinds = dict.fromkeys(cell.link.kind for cell in results.cells if cell.link.kind in LINKS)
    cost = link_cost(results, results.cells)
    if not kinds or cost is None:
        return
    text = f"One machine plays both nodes; between them, {' and '.join(LINKS[kind] for kind in kinds)}."
    floors = [cell.link.floor_ms for cell in results.cells if cell.link.floor_ms is not None]
    if floors:
        text += f" Without delay its round trip is {max(floors):.2g} ms."
    if cost.cpu_s > 0:
        text += f" Its own cost, part of the host's joules: {cost.cpu_s:.2f} s of CPU per epoch"
        if cost.joules is not None and cost.share is not None:
            text += f", {joules(cost.joules)} or {percent(cost.share)}"
        text += "."
    if cost.drops:
        text += f" {cost.drops} packets were dropped in its queue."
    yield Caveat("link", text, weakens=cost.drops > 0)


def _notes(results: Results) -> Iterable[Caveat]:
    # The settings of a sweep share their loader's notes.
    pairs = dict.fromkeys((find_base(results, cell.loader), note) for cell in results.cells for note in cell.notes)
    for loader, note in pairs:
        yield Caveat(spell(loader), f"{note[:1].upper()}{note[1:].rstrip('.')}.")


def link_cost(results: Results, cells: Iterable[CellResult]) -> LinkCost | None:
    """Return what the link cost over the epochs of some cells; None without a link or a figure."""
    ids = {cell.cell_id for cell in cells}
    rows = [row for row in results.rows if row.cell_id in ids]
    epochs = [epoch for cell in cells for epoch in cell.link.epochs]
    cpu = Stat.of(epoch.link_cpu_s for epoch in epochs)
    if cpu is None:
        return None
    energy = Stat.of(row.link_j for row in rows)
    share = Stat.of(row.link_j / row.total_j for row in rows if row.link_j is not None and row.total_j)
    return LinkCost(
        cpu_s=cpu.median,
        joules=energy.median if energy else None,
        share=share.median if share else None,
        drops=sum(epoch.drops or 0 for epoch in epochs),
    )


def _words(domains: Sequence[str]) -> str:
    return " and ".join(", ".join(domains).upper().rsplit(", ", 1))
