"""The numbers of an epoch of which claims are made, by name, each with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

METRICS: Final[Mapping[str, str]] = {
    # epochs.csv
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
    "loader_made_s": "s",
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
    "ranks_wait_s": "s",
    # of these
    "busy_share": "share",
    "until_first_batch_s": "s",
    "cpu_s_per_sample": "s",
    "ranks_wait_share": "share",
    # batches.parquet
    "slow_share": "share",
    "slow_batch_std": "",
    "slow_first_half": "share",
}
"""Units: s, J, share (0 to 1), bytes; none for the rest.

`busy_share` is the step's share of the epoch, the wait for the first batch included; `until_first_batch_s` counts from
the making of the loader; `ranks_wait_share` is the share of the epoch in which a rank waited for slower ones, of the
rank that waited most; `slow_share` is the mean over batches of the share of slow samples in each, `slow_batch_std`
the deviation of their number, `slow_first_half` what share of the slow samples comes in the first half of the batches
(harness.report.claims.composition says which samples are slow).
"""

ENERGY: Final = frozenset(name for name, unit in METRICS.items() if unit == "J")
"""No claim of these is judged on an estimate, or where the accelerator is emulated."""
