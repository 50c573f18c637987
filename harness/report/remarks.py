"""What a report says of a run in words: the headline, what to know before the figures, and what went wrong.

The sentences are templates in template/remarks.yaml; this module lists the facts that they are about.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any, Final, TypeAlias

from energymon.reading import DIRECTNESS, ESTIMATE
from harness.report.distance import compare_distances
from harness.report.figures.sentences import fill, read_sentences
from harness.report.intervals import fit_drift
from harness.report.labels import factor, percent, regime_labels, seconds, significant, span, spell
from harness.report.measurements import find_base
from harness.report.summary import LoaderGroup, Stat, choose_base, compute_joule_ratio, compute_ratio, find
from harness.results.cells import CellResult, EnergyRecord
from harness.results.checks import Check
from harness.results.epoch_row import DOMAINS, EpochRow
from harness.results.reader import Results
from harness.testbed.caches import MAPPED_STAY

KINDS: Final = ("failed", "damaged", "interrupted", "running", "not run", "invalid", "warning")
"""Kinds of problem, the gravest first."""
_MOUNTS: Final = {"nfs4": "kernel NFSv4, as in the paper", "sshfs": "sshfs (the paper mounts NFSv4)"}
_LINKS: Final = {"relay": "a user-space delay line", "netem": "the kernel's netem"}

_Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Caveat:
    """One thing to know, under a word that says what it is about."""

    topic: str
    text: str
    weakens: bool = False
    """Whether it limits what the figures can show, as emulation and estimates do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that went wrong, and for how many cells of a loader and regime."""

    kind: str
    where: str
    """Loader, workload where the run has several, and regime."""
    count: int
    """How many cells, or epochs where a row or check is meant."""
    text: str
    """The reason: the error, or the rule with the expected and the found value. May be empty."""


def list_caveats(results: Results, groups: Sequence[LoaderGroup]) -> tuple[Caveat, ...]:
    """Return what limits the figures first, then what explains them."""
    facts = {**_list_facts(results, groups), "energies": _energies(groups)}
    found = [
        Caveat(fill(entry["topic"], one), fill(entry["text"], one), bool(entry.get("weakens") or one.get("weakens")))
        for entry in read_sentences()["caveats"]
        for one in facts[entry["of"]]
    ]
    return tuple(sorted(found, key=lambda caveat: not caveat.weakens))


def _list_facts(results: Results, groups: Sequence[LoaderGroup]) -> Mapping[str, Sequence[_Facts]]:
    """Return the facts that caveats are about, by the name that the templates use."""
    records = [cell.record for cell in results.cells if cell.record]
    agents: list[EnergyRecord] = []
    for record in records:
        agents += [record.energy, *record.hosts]
    limit = results.experiment.checks.idle_cpu_pct / 100
    hosts = {one.idle[0].node: one for one in agents if one.idle}
    busy = {host: one.idle_cpu_util for host, one in hosts.items() if (one.idle_cpu_util or 0.0) > limit}
    served = [(cell.loader, cell.record.daemon_memory) for cell in results.cells if cell.record]
    limits = dict.fromkeys((loader, one.limit_bytes) for loader, one in served if one is not None)
    mapped = sorted({spell(cell.loader) for cell in results.cells if cell.record and MAPPED_STAY in cell.record.caches})
    warned = [check for check in results.checks if check.verdict == "warn"]
    crowded = sum(check.rule == "alone" for check in warned)
    places = [check.actual for check in warned if check.rule == "same_place"]
    again = sum(cell.measured_again > 0 for cell in results.cells)
    # The settings of a sweep share their loader's notes.
    notes = dict.fromkeys((find_base(results, cell.loader), note) for cell in results.cells for note in cell.notes)
    return {
        "model_checks": [{"of": results.model_checks}] if results.model_checks else [],
        "accelerators": _accelerators(results),
        "busy_hosts": [{"host": host, "busy": util, "limit": limit} for host, util in busy.items()],
        "idle_hosts": [_idle(host, one) for host, one in hosts.items() if host not in busy],
        "broken_files": _broken_files(results),
        "skipped": _skipped(results),
        "preparations": _preparations(results),
        "placements": _placements(results),
        "ranks": _ranks(results),
        "memory_limits": [
            {"limit_bytes": size} for size in dict.fromkeys(one.memory.limit_bytes for one in records if one.memory)
        ],
        "daemon_limits": [{"loader": loader, "limit_bytes": size} for loader, size in limits],
        "warm_epochs": [{}] * (results.experiment.testbed.cold == "cell"),
        "mounts": _mounts(results),
        "links": _links(results),
        "mapped": [{"loaders": mapped}] if mapped else [],
        "crowded": [{"epochs": crowded}] if crowded else [],
        "elsewhere": [
            {"cells": places.count(place), "all_cells": len(results.cells), "where": place}
            for place in dict.fromkeys(places)
        ],
        "drifts": [fact for workload in results.workloads for fact in _drift(results, groups, workload)],
        "repeated": [{"cells": again}] if again else [],
        "notes": [{"loader": loader, "note": note.rstrip(".")} for loader, note in notes],
    }


def _accelerators(results: Results) -> Sequence[_Facts]:
    """Return the accelerators' names, and how many of emulated ones have an assumed step: 0 none, 1 some, 2 all."""
    found = dict.fromkeys(cell.accelerator for cell in results.cells if cell.accelerator)
    if not found:
        return []
    names = [label.removeprefix("emulated:").strip() for label in found]
    assumed = [name.startswith("assumed") for name in names]
    if results.emulated and len(found) > 1:
        workloads = {(cell.accelerator, spell(cell.workload)): None for cell in results.cells}
        by_label = {label: ", ".join(workload for of, workload in workloads if of == label) for label in found}
        names = [f"{name} ({by_label[label]})" for name, label in zip(names, found, strict=True)]
    records = [cell.record.accelerator for cell in results.cells if cell.record]
    citations = [text for one in records for text in (one.citation, one.power_citation) if text]
    return [
        {
            "emulated": results.emulated,
            "weakens": results.emulated,
            "trains": not all(label.startswith("none:") for label in found),
            "labels": ", ".join(names if results.emulated else found),
            "assumed": 2 if all(assumed) else int(any(assumed)),
            "citations": list(dict.fromkeys(text.rstrip(".") for text in citations)),
        }
    ]


def _energies(groups: Sequence[LoaderGroup]) -> Sequence[_Facts]:
    rows = [row for group in groups for row in group.rows]
    estimated = [domain.upper() for domain in DOMAINS if any(domain in row.estimated for row in rows)]
    absent = [domain.upper() for domain in DOMAINS if not any(domain in row.joules for row in rows)]
    pairs = ((row, *pair) for row in rows for pair in row.sources.items())
    sources = dict.fromkeys(f"{domain} from {source}" for row, domain, source in pairs if domain not in row.estimated)
    facts = {"estimated": estimated, "absent": absent, "sources": list(sources), "weakens": bool(estimated or absent)}
    facts["emulated"] = "GPU" in estimated
    errors = [row.find_joule_error(row.drawn_j, cancels=False) for row in rows if row.drawn_j]
    is_known = all(row.energy_accuracy_j is not None for row in rows)
    facts["accuracy"] = f"± {percent(max(errors, default=0.0))} with the resolution" if is_known else "unknown"
    return [facts] if rows else []


def _drift(results: Results, groups: Sequence[LoaderGroup], workload: str) -> Sequence[_Facts]:
    """Return how the loader that reads nothing changed over the run, and what the comparisons can show."""
    here = [group for group in groups if group.workload == workload]
    rows = [row for group in here if group.loader in results.bounds for row in group.rows]
    begins = {row: datetime.fromisoformat(row.start_utc).timestamp() for row in results.rows}
    span_s = max(begins.values(), default=0.0) - min(begins.values(), default=0.0)
    pairs = [(one, find(here, workload, one.regime, choose_base(results))) for one in here]
    changes = []
    for what, name, compare in (("seconds", "duration_s", compute_ratio), ("joules", "drawn_j", compute_joule_ratio)):
        cells: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            if (value := getattr(row, name)) is not None:
                cells[row.cell_id].append((begins[row], value))
        means = [tuple(fmean(column) for column in zip(*of, strict=True)) for of in cells.values()]
        drift = fit_drift(means, span_s)
        if drift is not None:
            ratios = [compare(*pair) for pair in pairs if pair[0].loader in results.readers]
            least = min(filter(None, (one.least_difference for one in ratios if one is not None)), default=math.inf)
            exceeds = not drift.is_noise and abs(math.log(drift.value)) > math.log1p(least)
            changes.append({"what": what, "drift": drift, "least": least, "exceeds": exceeds})
    named = workload if len(results.workloads) > 1 else ""
    weakens = any(one["exceeds"] for one in changes)
    return [{"workload": named, "span_s": span_s, "changes": changes, "weakens": weakens}] if changes else []


def _idle(host: str, agent: EnergyRecord) -> _Facts:
    """Return the idle power from which joules of a host are net, of the last session."""
    direct = sorted(agent.idle, key=lambda one: DIRECTNESS.index(one.source))
    shown = {(one.device, one.domain): one for one in reversed(direct)}
    watts = [
        f"{significant(shown[part].watts)} W ({part[0] if part[0].startswith(part[1]) else ' '.join(part)}"
        f"{', an estimate' if shown[part].source == ESTIMATE else ''})"
        for part in dict.fromkeys((one.device, one.domain) for one in agent.idle)
    ]
    return {"host": host, "watts": watts}


def _broken_files(results: Results) -> Sequence[_Facts]:
    field = next(iter(results.sessions.values()), {}).get("dataset", {}).get("skipped")
    files = (field.get("value") if isinstance(field, dict) else None) or []
    return [{"files": files}] if files else []


def _skipped(results: Results) -> Sequence[_Facts]:
    by_loader: dict[str, dict[int, str]] = {}
    for cell in results.cells:
        if cell.skipped:
            by_loader.setdefault(cell.loader, {}).update(cell.skipped)
    return [
        {"loader": loader, "ids": sorted(samples), "why": samples[min(samples)].rstrip(".")}
        for loader, samples in by_loader.items()
    ]


def _preparations(results: Results) -> Sequence[_Facts]:
    """Return what it cost to convert to shards and to forms of them, and over how many epochs that is spread."""
    found = []
    for one in results.preparations:
        loaders = results.experiment.loaders.items()
        streamed = {
            key
            for key, loader in loaders
            if loader.reads == "stream" and one.module in ("", loader.daemon.get("module"))
        }
        read = sum(row.loader in streamed and row.dataset == one.dataset for row in results.rows)
        parts = {1: "over one epoch", read: f"over the {read} of this run", 100: "over 100"}
        names = ("form", "dataset", "seconds", "cpu_s", "joules", "estimated", "raw_bytes", "shard_bytes")
        facts = {name: getattr(one, name) for name in names}
        found.append({**facts, "parts": {count: over for count, over in parts.items() if count}})
    return found


def _placements(results: Results) -> Sequence[_Facts]:
    kind = results.experiment.placement
    found: list[_Facts] = [{"kind": kind}] if kind in ("local", "sharded") else []
    far = next((cell.record.placement for cell in results.cells if cell.record), None)
    if far and far.storages > 1:
        found.append({"kind": "several", "storages": far.storages})
    total = next((row.samples for row in results.rows if row.samples), None)
    if kind == "half" and far and total:
        here = total - far.remote_samples
        found.append({"kind": kind, "here": here, "total": total, "remote_bytes": far.remote_bytes})
    return found


def _ranks(results: Results) -> Sequence[_Facts]:
    records = [cell.record for cell in results.cells if cell.record and cell.record.ranks]
    every = dict.fromkeys(
        (len(one.ranks), len({rank.address for rank in one.ranks}), one.accelerator.gradient_bytes) for one in records
    )
    return [{"ranks": ranks, "nodes": nodes, "gradient_bytes": gradients} for ranks, nodes, gradients in every]


def _mounts(results: Results) -> Sequence[_Facts]:
    regimes = results.experiment.regimes
    mounts = {cell.mount for cell in results.cells if cell.mount and not regimes[cell.regime].is_local}
    remote = sorted(mount for mount in mounts if mount != "local" and not mount.startswith("none"))
    return [{"mount": _MOUNTS.get(mount, mount)} for mount in remote]


def _links(results: Results) -> Sequence[_Facts]:
    """Return what the link is made of and what it cost an epoch, in medians; empty without a link or a figure."""
    kinds = dict.fromkeys(_LINKS[cell.link.kind] for cell in results.cells if cell.link.kind in _LINKS)
    epochs = [epoch for cell in results.cells for epoch in cell.link.epochs]
    cpu = Stat.of(epoch.link_cpu_s for epoch in epochs)
    if not kinds or cpu is None:
        return []
    energy = Stat.of(row.link_j for row in results.rows)
    share = Stat.of(row.link_j / row.drawn_j for row in results.rows if row.link_j is not None and row.drawn_j)
    drops = sum(epoch.drops or 0 for epoch in epochs)
    floors = [cell.link.floor_ms for cell in results.cells if cell.link.floor_ms is not None]
    return [
        {
            "kinds": list(kinds),
            "floor_ms": max(floors, default=None),
            "cpu_s": cpu.median,
            "joules": energy.median if energy else None,
            "share": share.median if share else None,
            "drops": drops,
            "weakens": drops > 0,
        }
    ]


def write_headline(results: Results, groups: Sequence[LoaderGroup]) -> str:
    """Return what the run found, in a sentence or two."""
    measured = [group for group in groups if group.time_s and group.loader in results.readers]
    trusted = [group for group in measured if group.trusted]
    valid = [group for group in trusted if group.workload == trusted[0].workload]
    facts: dict[str, Any] = {
        "model_check": bool(results.model_checks),
        "measured": len(measured),
        "any_done": not results.rows and any(cell.state == "done" for cell in results.cells),
        "any_valid": bool(valid),
        "several_workloads": len(results.workloads) > 1,
        "slowdowns": [],
    }
    if measured:
        facts |= _list_slowdowns(results, groups, (valid or measured)[0].workload)
    if valid and not facts["slowdowns"]:
        here = [(group, group.time_s.median) for group in valid if group.regime == valid[0].regime and group.time_s]
        label = regime_labels(results)[valid[0].regime]
        facts |= {
            "place": "On local files" if label == "local" else f"At {label}",
            "workload": spell(valid[0].workload),
            "all_single": all(group.repeats == 1 for group, _ in here),
            "times": [
                {"loader": spell(group.loader), "time": _join_unit(seconds(time)), "single": group.repeats == 1}
                for group, time in sorted(here, key=lambda one: one[1])
            ],
        }
    return fill(read_sentences()["headline"], facts)


def _list_slowdowns(results: Results, groups: Sequence[LoaderGroup], workload: str) -> _Facts:
    """Return how much slower each loader is at the farthest distance."""
    labels = regime_labels(results)
    far = [one for one in compare_distances(results, groups, workload) if one.regime == results.regimes[-1]]
    known = sorted(
        ((one.ours, one.loader) for one in far if one.ours is not None and one.ours.trusted),
        key=lambda pair: pair[0].value,
    )
    slowdowns = [
        {
            "factor": ("≈" if ratio.is_noise else "") + factor(ratio.value).rstrip("×"),
            "sureness": f"within noise, {span(ratio)}" if ratio.is_noise else span(ratio),
            "loader": spell(loader),
        }
        for ratio, loader in known
    ]
    near, last = labels[results.regimes[0]], labels[results.regimes[-1]]
    near = "local files" if near == "local" else _join_unit(near)
    return {"slowdowns": slowdowns, "near": near, "far": _join_unit(last)}


def _join_unit(quantity: str) -> str:
    """Keep a number and its unit on one line."""
    return quantity.replace(" ", "\u00a0")


def list_problems(results: Results) -> tuple[Problem, ...]:
    """Return the problems, the gravest kind first; equal ones are counted together, and warnings but for their numbers.

    The text is that of the first one.
    """
    merged: dict[tuple[str, str, str], list[str]] = {}
    cells = ((cell.state, _locate(results, cell), cell.reason) for cell in results.unfinished)
    for kind, where, text in (*cells, *_list_refused(results), *_list_warnings(results)):
        same = re.sub(r"\d[\d.]*", "N", text) if kind == "warning" else text
        merged.setdefault((kind, where, same), []).append(text)
    found = [Problem(kind, where, len(texts), texts[0]) for (kind, where, _), texts in merged.items()]
    return tuple(sorted(found, key=lambda problem: KINDS.index(problem.kind)))


def _list_refused(results: Results) -> Iterable[tuple[str, str, str]]:
    unfinished = {cell.cell_id for cell in results.unfinished}
    failing = [check for check in results.checks if check.verdict == "fail"]
    for row in results.rows:
        if row.is_valid or row.cell_id in unfinished:
            continue
        kind, _, rules = row.valid.partition(":")
        told = [_tell(check) for check in failing if check.cell_id == row.cell_id and check.epoch in {None, row.epoch}]
        text = "; ".join(dict.fromkeys(told)) or rules.strip()
        yield kind if kind in KINDS else "invalid", _locate(results, row), text


def _list_warnings(results: Results) -> Iterable[tuple[str, str, str]]:
    cells: dict[str, CellResult] = {cell.cell_id: cell for cell in results.cells}
    for check in results.checks:
        if check.verdict == "warn":
            cell = cells.get(check.cell_id)
            yield "warning", _locate(results, cell) if cell else check.cell_id, _tell(check)


def _tell(check: Check) -> str:
    return f"{check.rule.replace('_', ' ')}: {check.actual or 'unknown'}, expected {check.expected}"


def _locate(results: Results, of: CellResult | EpochRow) -> str:
    parts = [spell(of.loader), spell(of.workload)] if len(results.workloads) > 1 else [spell(of.loader)]
    return ", ".join([*parts, regime_labels(results).get(of.regime, of.regime)])
