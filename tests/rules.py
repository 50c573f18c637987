"""The matrix of validity rules: of each the sabotage that a test commits, and what a user sees of it.

    python tests/rules.py

Writes the matrix into results/README.md, between its markers, with the known attacks and whether a rule catches them. A
rule is added by its line in `MATRIX`. Tests compare these lines with the rules, with the checks of a run of all faults,
and with the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results" / "README.md"
BEGIN, END = "<!-- generated: rules -->\n", "<!-- end -->\n"
WARNING = "warning"
OF_RUN = frozenset({"whole_cell", "same_place"})
"""Rules of cells and runs, which `RULES` has not."""


@dataclass(frozen=True)
class Sabotage:
    """What a test does to break what a rule guards."""

    fault: str
    """Its name in `FAULTS` of tests/integration/test_checks_fail.py, or the file below tests/ that commits it, or empty
    for what that file does to a whole cell."""
    what: str
    sees: str
    """The check's `actual`, in which N stands for a number and … for any text."""
    verdict: str = "invalid"

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the check's `actual` matches."""
        return re.compile(re.escape(self.sees).replace("N", r"[-+]?\d[\d.e+-]*").replace("…", ".*"))


_PROBE = "N ms, in probe 3"
_OTHER_LINK = "the link of a cell is another one than the regime's"
MATRIX: dict[str, Sabotage] = {
    "rtt_before": Sabotage("", _OTHER_LINK, _PROBE),
    "rtt_after": Sabotage("wrong from here on", "the link changes at a cell's end", _PROBE),
    "rate_before": Sabotage("", _OTHER_LINK, "N Gbit/s, in probe 3"),
    "rate_after": Sabotage("wrong from here on", "the link changes at a cell's end", "N Gbit/s, in probe 3"),
    "jitter_before": Sabotage("", f"{_OTHER_LINK}: no jitter", _PROBE),
    "jitter_after": Sabotage("", f"{_OTHER_LINK}: no jitter", _PROBE),
    "loss_to_compute_before": Sabotage("", f"{_OTHER_LINK}: no loss", "N %, in probe 3"),
    "loss_to_compute_after": Sabotage("", f"{_OTHER_LINK}: no loss", "N %, in probe 3"),
    "loss_to_storage_before": Sabotage("", f"{_OTHER_LINK}: no loss", "N %, in probe 3"),
    "loss_to_storage_after": Sabotage("", f"{_OTHER_LINK}: no loss", "N %, in probe 3"),
    "no_drops": Sabotage("full queue", "packets fill the link's queue", "N dropped"),
    "link_pause": Sabotage(
        "stalled line", "the delay line is stopped", "a ping N ms, the delay line's own longest pause N ms"
    ),
    "link_held": Sabotage("farther link", "the link is 38 ms farther for a while", "N of N"),
    "pings_lost": Sabotage("deaf end", "the storage node answers no ping", "N lost"),
    "paths": Sabotage("", "a loader uses none of a link's paths", "N MB over 0 connections…", WARNING),
    "bytes_received": Sabotage("reads nothing", "a loader reads no sample", "N bytes"),
    "local_bytes": Sabotage(
        "local half travels", "samples that lie on the node that trains come over the link", "N bytes"
    ),
    "exactly_once": Sabotage("loses", "a loader leaves a sample out", "1 missing, 0 repeated, 0 unknown"),
    "loader_bytes": Sabotage("miscounts", "a loader counts more bytes than its samples have", "N of N bytes"),
    "labels": Sabotage("decodes nothing", "every label is 0", "N of N wrong, the first of them 0 where sample N has N"),
    "content": Sabotage(
        "zeros",
        "the data of every sample are 0",
        "N of N wrong: of sample N, its data are off by N on average, expected N at most",
    ),
    "shuffled": Sabotage("replays", "an epoch has the order of an earlier one", "that of epoch N"),
    "early_work": Sabotage(
        "reads ahead",
        "a loader reads samples before the epoch's clock",
        "N of N bytes, N s of CPU beside N s in the epoch",
    ),
    "setup_work": Sabotage(
        "clean", "a loader computes in its constructor", "N s of CPU beside N s in the epoch, N of N bytes", WARNING
    ),
    "local_reads": Sabotage(
        "harness/test_lying_loaders.py", "a loader keeps local samples in its memory", "N of N bytes (N)"
    ),
    "missed_ticks": Sabotage("stalled agent", "the energy agent is stopped", "N of N ticks (N %)"),
    "clock_offset": Sabotage("clock is set", "a clock is set while the cell runs", "…"),
    "missed_ticks_HOST": Sabotage(
        "integration/test_hosts_run.py", "the agent of another host is stopped", "N of N ticks (N %)"
    ),
    "clock_offset_HOST": Sabotage(
        "integration/test_hosts_run.py", "another host's clock is set", "before N ± N ms (…), after N ± N ms (…)"
    ),
    "others_cpu": Sabotage(
        "hog",
        "a process of another takes a processor",
        "N s in N s of N CPUs (N %), the run's threads waited N s for a CPU…",
    ),
    "step_time": Sabotage(
        "keeps the lock", "a loader keeps the interpreter's lock", "the median N %, all N % of the epoch"
    ),
    "link_in_epoch": Sabotage(
        "slightly farther link",
        "the link is 2 ms farther while an epoch runs",
        "median N ms and 95 % N ms later, at most N ms nearer…",
    ),
    "slowdown": Sabotage(
        "harness/test_heat.py",
        "a board slows down because it is too hot",
        "gpu-0 hw_thermal_slowdown at its end; at most N °C",
    ),
    "throttled": Sabotage("throttled", "a CPU quota stops the cell", "N s in N s, N times"),
    "pressure_memory": Sabotage("memory is short", "processes lack memory", "N %, N MB"),
    "pressure_io": Sabotage("disks are busy", "others write to the disks", "N %, N of N MB by others", WARNING),
    "frequency": Sabotage("", "the processors are slower after a cell", "N ms before the first cell, …: N %…", WARNING),
    "steal": Sabotage("steal", "the host of the virtual machine takes its processors", "N %"),
    "alone": Sabotage("clean", "another run is on the machine", "N other: …", WARNING),
    "spread": Sabotage("hog", "one epoch takes longer than the others", "N % over N", WARNING),
    "cpu_parts": Sabotage("loses time", "the kernel counts too little CPU time", "N s of N s", WARNING),
    "meters": Sabotage(
        "harness/test_checks.py",
        "a board's counter shows 1.74 times its power",
        "nvml-counter of gpu-0 gpu has N J and nvml-power-average of gpu-0 gpu N J, N times as much; their bounds "
        "explain N J",
    ),
    "sensors": Sabotage("lost sensor", "a sensor cannot be read any more", "…lost: …", WARNING),
    "energy_agent": Sabotage("killed agent", "the energy agent is killed", "…", WARNING),
    "same_place": Sabotage("", "a run is resumed in another environment", "…", WARNING),
    "whole_cell": Sabotage("", "a byte of a cell's file is changed", "…it has changed since the cell ended…"),
}
"""By rule; HOST stands for the name of another host."""


@dataclass(frozen=True)
class Attack:
    """A way to a wrong result, by intent or by accident."""

    what: str
    rules: tuple[str, ...] = ()
    """Those that catch it."""
    note: str = ""
    """What they leave open, or why none does."""


ATTACKS = (
    Attack("right ids, zeros or another sample's data", ("content",)),
    Attack(
        "decodes in its constructor; in the epoch fetches the bytes and drops them",
        ("setup_work",),
        "a warning; work that the loader of the warm-up leaves in the memory of the process is not seen",
    ),
    Attack("keeps a local dataset in memory from the constructor or the first epoch on", ("local_reads",)),
    Attack("reads ahead of the clock in a local regime", ("local_reads", "early_work")),
    Attack("does 10 % of an epoch's computing before the clock", ("early_work",), "0.5 s a rank are allowed"),
    Attack(
        "a link that is 9 ms farther within epochs, and right at both probes",
        ("link_in_epoch",),
        "the pings are in `link.parquet`",
    ),
    Attack(
        "an emulated step that takes 12 % longer", ("step_time",), "the times of all steps are in `batches.parquet`"
    ),
    Attack(
        "another CPU frequency, governor or turbo; thermal limits",
        ("frequency", "slowdown"),
        "a warning of `frequency`; the governor and Intel's turbo are in `provenance.json`",
    ),
    Attack("a CPU quota of a cgroup", ("throttled",), "utilisation clamps are not seen"),
    Attack(
        "a board that slows down, of heat, of its power supply or at its power limit",
        ("slowdown",),
        "a power limit only warns, for full load is at it, as do boards on which the cell does not train; between the "
        "edges only what the board counts is seen: heat and power limits",
    ),
    Attack(
        "another program uses the disk", ("pressure_io",), "a warning; what disks read and wrote is in `metrics.csv`"
    ),
    Attack(
        "too little memory, swapping", ("pressure_memory",), "a neighbour in the cache or on the memory bus is not seen"
    ),
    Attack(
        "a virtual disk whose host has the files in its own page cache",
        note="a guest sees a disk and no cache behind it; compare the MB/s of cold local epochs with the disk's own",
    ),
    Attack(
        "caches that cannot be dropped whole, as in a container",
        note="advice (fadvise) leaves pages that a process maps: `local_reads` is not applicable and says so",
    ),
    Attack(
        "huge pages, NUMA balancing, node of the memory",
        note="not recorded; they are the same for all loaders of a run",
    ),
    Attack(
        "another congestion control for one loader's daemon",
        note="a setting (`daemon.congestion`), shown in the notes of the loader; namespaces have that of the testbed",
    ),
    Attack(
        "jitter or loss that the regime has not", ("jitter_before", "loss_to_compute_before", "link_held", "pings_lost")
    ),
    Attack("another process beside the run", ("others_cpu",)),
    Attack("another guest of the same host", ("steal",), "only where the host reports it"),
    Attack("a clock that is set or slewed, or differs between hosts", ("clock_offset", "clock_offset_HOST")),
    Attack("a time namespace", note="no effect: the energy agent says when an epoch began and ended"),
    Attack("another answer of DNS", note="no effect: there are no names on the way of the data"),
    Attack(
        "samples that are lost, repeated, invented, replayed or miscounted",
        ("exactly_once", "loader_bytes", "shuffled"),
    ),
    Attack(
        "a cache of up to some 4 % of the samples over a link",
        note="the headers of TCP and SSH count as bytes of the samples; 0.2 to 2 % are usual",
    ),
    Attack(
        "opens the dataset's own files on one machine, and pulls as many bytes of padding over the link",
        note="both nodes have one file system; on several hosts there is no such file",
    ),
    Attack("a process of idle priority, of the run's environment, or many short-lived ones", ("others_cpu",)),
    Attack("one tensor again and again", ("content", "bytes_received", "local_reads")),
    Attack("a cache across epochs", ("bytes_received", "local_reads")),
    Attack("reads 1 kB of each file", ("content", "bytes_received")),
    Attack("reads everything and decodes nothing: zeros, label 0", ("content", "labels")),
    Attack(
        "decodes everything in its constructor, local",
        ("setup_work", "local_reads"),
        "code that is read again counts too in a first epoch, 30 to 60 MB: `local_reads` may pass there",
    ),
    Attack("a page cache that another process has warmed, local", ("local_reads",)),
    Attack(
        "others send packets over the link",
        ("bytes_received", "early_work"),
        "beyond 15 % of the samples' bytes, 4 KiB a sample and 1 MiB, or between epochs",
    ),
)
"""Known ways to a wrong result."""


def make_page() -> str:
    """Return the generated part of results/README.md."""
    rows = [f"| `{rule}` | {one.what} | {one.verdict}: `{one.sees}` |" for rule, one in sorted(MATRIX.items())]
    lines = ["| rule | sabotage in the tests | what the user sees |", "|---|---|---|", *rows, ""]
    lines += [
        "What is known to spoil a result, and what catches it:",
        "",
        "| attack or accident | caught by | not caught |",
    ]
    lines += ["|---|---|---|"]
    for attack in ATTACKS:
        catching = ", ".join(f"`{rule}`" for rule in attack.rules)
        lines.append(f"| {attack.what} | {catching or 'nothing'} | {attack.note} |")
    return BEGIN + "\n" + "\n".join(lines) + "\n\n" + END


def replace_part(page: str, part: str) -> str:
    """Return a page with its generated part replaced."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN.strip()} and {END.strip()}")
    return before + part + after


if __name__ == "__main__":
    PAGE.write_text(replace_part(PAGE.read_text(), make_page()))
