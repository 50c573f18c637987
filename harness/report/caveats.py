"""What a reader must know before the figures: emulation, estimates, mounts, the link's own cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.cell.messages import AcceleratorRecord
from harness.cell.skipped import id_list
from harness.report.labels import joules, megabytes, percent, spell
from harness.report.measurements import find_base
from harness.report.summary import Group, Stat
from harness.results.cells import CellResult, LinkEpoch
from harness.results.epoch_row import DOMAINS
from harness.results.reader import Results

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
    share: float | None
    """Median of the delay line's joules over the epoch's."""
    drops: int
    """Packets dropped in the delay queue, all epochs together."""


def list_caveats(results: Results, groups: Sequence[Group]) -> tuple[Caveat, ...]:
    """Return what limits the figures first, then what explains them."""
    found = [
        *_accelerator(results),
        *_energy(groups),
        *_skipped(results),
        *_placement(results),
        *_ranks(results),
        *_memory(results),
        *_mounts(results),
        *_link(results),
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
    if results.experiment.testbed.cold == "cell":
        yield Caveat("caches", "Cold before a cell's first epoch alone: later ones find cached files.")


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
    totals = {(row.cell_id, row.epoch): row.total_j for row in results.rows}
    pairs = [(cell.cell_id, epoch) for cell in cells for epoch in cell.link.epochs]
    cpu = Stat.of(epoch.link_cpu_s for _, epoch in pairs)
    if cpu is None:
        return None
    energy = Stat.of(epoch.link_j for _, epoch in pairs)
    share = Stat.of(_share(epoch, totals.get((cell_id, epoch.epoch))) for cell_id, epoch in pairs)
    return LinkCost(
        cpu_s=cpu.median,
        joules=energy.median if energy else None,
        share=share.median if share else None,
        drops=sum(epoch.drops or 0 for _, epoch in pairs),
    )


def _share(epoch: LinkEpoch, total_j: float | None) -> float | None:
    return None if epoch.link_j is None or not total_j else epoch.link_j / total_j


def _words(domains: Sequence[str]) -> str:
    return " and ".join(", ".join(domains).upper().rsplit(", ", 1))
