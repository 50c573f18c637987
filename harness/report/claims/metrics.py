"""The numbers of an epoch of which claims are made, by name, each with its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

_WORK: Final = {"median": "p50", "low": "min", "high": "max", **{name: name for name in ("mean", "p75", "p90", "std")}}
WORK: Final[Mapping[str, str]] = {f"work_{name}_ms": f"work_{stored}_s" for name, stored in _WORK.items()}
"""Preprocessing times of an epoch's samples, and the columns of metrics.csv in which they stand in s."""

METRICS: Final[Mapping[str, str]] = {
    # epochs.csv
    "setup_s": "s",
    "duration_s": "s",
    "stall_s": "s",
    "samples_per_s": "",
    "mb_per_s": "",
    "au": "share",
    "cpu_util": "share",
    "gpu_util": "share",
    "cpu_j": "J",
    "dram_j": "J",
    "gpu_j": "J",
    "total_j": "J",
    # metrics.csv
    "first_batch_s": "s",
    "batch_p50_s": "s",
    "batch_p99_s": "s",
    "steady_samples_per_s": "",
    "loss_first": "",
    "loss_last": "",
    "loss_mean": "",
    "cell_cpu_s": "s",
    "pss_peak_bytes": "bytes",
    "rss_peak_bytes": "bytes",
    "disk_read_bytes": "bytes",
    "read_amplification": "",
    "ranks_wait_s": "s",
    **dict.fromkeys(WORK, "ms"),
    # of these
    "busy_share": "share",
    "until_first_batch_s": "s",
    "cpu_s_per_sample": "s",
    "ranks_wait_share": "share",
    "cpu_system_share": "share",
    "link_share": "share",
    "round_trips": "",
    "reader_round_trips": "",
    # batches.parquet
    "slow_batch_std": "",
    "slow_first_half": "share",
    "reordered_share": "share",
    "loss_meanwhile": "",
}
"""Units: s, J, share (0 to 1), bytes, ms; none for the rest.

`busy_share` is the step's share of the epoch, the wait for the first batch included; `until_first_batch_s` counts from
the making of the loader; `ranks_wait_share` is the share of the epoch in which a rank waited for slower ones, of the
rank that waited most; `cpu_system_share` is the system's share of the CPU time of the cell's processes; `link_share` is
the bytes of the samples over those that the regime's rate would carry in the epoch; `round_trips` is the epoch's time
over its samples and the regime's round trip, and `reader_round_trips` that times the files that are read at once;
`slow_batch_std` is
the deviation of the number of slow samples in a batch, `slow_first_half` what share of them comes in the first half of
the batches (harness.report.claims.composition says which samples are slow), `reordered_share` the share of batches
with other samples than PyTorch's DataLoader has in the same batch; `loss_meanwhile` is the loss in the mean of the time
until the shortest epoch of that number has ended, of the same workload and regime; `work_*_ms` are of the preprocessing
of the epoch's samples: mean, median, percentiles, least, greatest and deviation.
"""

BATCH_METRICS: Final = frozenset({"slow_batch_std", "slow_first_half", "reordered_share", "loss_meanwhile"})
"""Those that are made of batches.parquet, which is read for them alone."""

OF_SETUP: Final = frozenset({"setup_s", "until_first_batch_s"})
"""Those that a cell has once, in its first epoch."""

ENERGY: Final = frozenset(name for name, unit in METRICS.items() if unit == "J")
"""No claim of these is judged on an estimate, or where the accelerator is emulated."""


def find_range(metric: str) -> tuple[float, float]:
    """Return the least and the greatest value that a metric can have."""
    return 0.0, 1.0 if METRICS[metric] == "share" else math.inf
