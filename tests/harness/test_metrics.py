"""Metrics of an epoch come from what its cell stored; what was not looked at stays unknown."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from harness.cell.epoch import BatchRecord
from harness.cell.resources import Resources
from harness.results.cell_folder import read_batches
from harness.results.make_rows import make_epoch_rows
from harness.results.metrics import make_epoch_metrics
from tests.harness.records import START, S, change, store_batches, with_epochs, with_events


def seen(at_s, **known):
    unknown = dict.fromkeys(("cpu_util", "pss_bytes", "disk_read_bytes", "disk_written_bytes"))
    unknown |= dict.fromkeys(("rx_bytes", "tx_bytes", "gpu_util", "gpu_mem_bytes"))
    return Resources(utc_ns=START + int(at_s * S), **(unknown | {"cell_cpu_s": 0.0, "rss_bytes": 0} | known))


def test_latencies_and_the_first_batch_are_those_of_the_waits(stored):
    (found,) = make_epoch_metrics(stored())
    assert found.first_batch_s == 1.0
    assert (found.batch_p50_s, found.batch_p95_s) == (0.5, pytest.approx(0.95))
    assert found.steady_samples_per_s == pytest.approx(4 / 2.5)  # 4 s less the first wait and step


def test_samples_that_were_left_out_are_counted(stored):
    told = {"event": "skipped", "epoch": 1, "utc_ns": START, "mono_ns": 0, "count": 2, "samples": {"4": "a", "5": "b"}}
    data = change(stored(), cell={"on_error": "skip"})
    (found,), (whole,) = make_epoch_metrics(with_events(data, more=[told])), make_epoch_metrics(data)
    assert (found.skipped_samples, whole.skipped_samples) == (2, 0)


def test_counters_are_differences_between_the_epoch_s_edges(stored):
    start = {"cell_cpu_s": 1.5, "cell_user_s": 0.75, "cell_system_s": 0.25}
    start |= {"disk_read_bytes": 100, "disk_written_bytes": 7, "rx_bytes": None}
    end = {"cell_cpu_s": 4.0, "cell_user_s": 2.75, "cell_system_s": 1.25}
    end |= {"disk_read_bytes": 350, "disk_written_bytes": 7, "rx_bytes": None}
    (found,) = make_epoch_metrics(with_events(stored(), start, end))
    assert (found.cell_cpu_s, found.cpu_user_s, found.cpu_system_s) == (2.5, 2.0, 1.0)
    assert (found.disk_read_bytes, found.disk_written_bytes) == (250, 0)
    assert found.rx_bytes is None
    # The loader was made at counts of 0: what came between that and the start is work before the epoch's clock.
    (found,) = make_epoch_metrics(with_events(stored(), start | {"rx_bytes": 5040}, end | {"rx_bytes": 9000}))
    assert (found.rx_bytes, found.early_rx_bytes, found.early_cpu_s) == (3960, 5040, 1.5)


def test_the_time_to_make_the_loader_is_counted_on_the_first_epoch_alone(stored):
    data = stored()
    assert [row.setup_s for row in make_epoch_rows(with_epochs(data, (2, data.batches[1])))] == [0.25, None]


def test_memory_is_the_most_that_was_seen_within_the_epoch_or_right_after_it(stored):
    rows = [seen(-1, pss_bytes=900, rss_bytes=900), seen(1, pss_bytes=500, rss_bytes=600), seen(2, rss_bytes=700)]
    data = replace(stored(), resources=rows)
    (found,) = make_epoch_metrics(data)
    assert (found.pss_peak_bytes, found.rss_peak_bytes) == (500, 700)
    after = {"event": "memory", "epoch": 1, "utc_ns": START + 4 * S, "mono_ns": 0, "pss_bytes": 650}
    assert make_epoch_metrics(with_events(data, more=[after]))[0].pss_peak_bytes == 650


def test_gpu_utilisation_is_the_mean_over_the_epoch(stored):
    rows = [seen(-1, gpu_util=1.0), seen(1, gpu_util=0.5, gpu_mem_bytes=10), seen(2, gpu_util=0.7), seen(3)]
    data = replace(stored(), resources=rows)
    assert make_epoch_rows(data)[0].gpu_util == pytest.approx(0.6)
    assert make_epoch_metrics(data)[0].gpu_mem_peak_bytes == 10
    assert make_epoch_rows(stored())[0].gpu_util is None


def test_losses_and_preprocessing_times_are_stored_a_batch_and_read_back(stored, tmp_path):
    path = tmp_path / "batches.parquet"
    work = [np.array([0.1, 0.2]), np.array([0.3])]
    records = [BatchRecord(S, S, 10, np.arange(len(w)), w) for w in work]
    store_batches(records, 1, tmp_path, [2.5, 1.5])
    found = read_batches(path, 0.25)[1]
    assert found.nominal_s.tolist() == [0.5, 0.25]
    assert found.loss.tolist() == [2.5, 1.5]
    assert found.work_s.tolist() == [0.1, 0.2, 0.3]
    (metrics,) = make_epoch_metrics(replace(stored(), batches={1: found}))
    assert (metrics.loss_first, metrics.loss_last, metrics.loss_mean) == (2.5, 1.5, 2.0)
    assert (metrics.work_p50_s, metrics.work_max_s) == (0.2, 0.3)
    assert metrics.work_mean_s == pytest.approx(0.2)


@pytest.mark.parametrize("ids", [[3, 1], (3, 1), torch.tensor([3, 1]), np.array([3, 1], np.int32)])
def test_ids_and_bytes_of_a_loader_of_ones_own_may_be_of_other_types(tmp_path, ids):
    store_batches([BatchRecord(S, S, np.int64(10), ids, (0.1, 0.2))], 1, tmp_path)
    found = read_batches(tmp_path / "batches.parquet")[1]
    assert found.ids.tolist() == [3, 1]
    assert found.nbytes.tolist() == [10]
    assert found.work_s.tolist() == [0.1, 0.2]


def test_an_engine_that_tells_no_times_and_a_step_without_a_loss_leave_them_unknown(stored, tmp_path):
    path = tmp_path / "batches.parquet"
    store_batches([BatchRecord(S, S, 10, np.arange(2), None)], 1, tmp_path)
    assert pq.read_schema(path).field("work_s").type == pa.list_(pa.float64())
    found = read_batches(path)[1]
    assert found.nominal_s is None
    assert found.loss is None
    assert found.work_s is None
    (metrics,) = make_epoch_metrics(replace(stored(), batches={1: found}))
    assert metrics.work_p90_s is metrics.loss_last is metrics.steady_samples_per_s is None


@pytest.mark.parametrize(
    ("read", "drops", "cell", "found"),
    [
        (6000, 0, {"caches": "vm.drop_caches"}, (6000, 2.0)),
        (6000, 0, {"caches": ""}, (6000, None)),
        (6000, 0, {"caches": "vm.drop_caches", "reads": "once"}, (6000, None)),
        (6000, 1, {"caches": "fadvise"}, (6000, None)),
        (0, 0, {"caches": "vm.drop_caches"}, (0, None)),
    ],
)
def test_read_amplification_is_what_disks_read_over_the_samples_bytes_where_caches_were_cold(
    stored, read, drops, cell, found
):
    start = {"cell_read_bytes": 100, "cache_drops": 7}
    data = with_events(stored(), start, {"cell_read_bytes": 100 + read, "cache_drops": 7 + drops})
    assert data.count_bytes(1) == 3000
    (metrics,) = make_epoch_metrics(change(data, cell=cell))
    assert (metrics.storage_read_bytes, metrics.read_amplification) == found


@pytest.mark.parametrize(("kind", "read"), [("remote", 6000), ("half", 7000), ("local", 7000)])
def test_what_the_cell_reads_itself_counts_where_it_has_samples(stored, kind, read):
    start = {"daemon_cpu_s": 0.0, "daemon_read_bytes": 500, "cell_read_bytes": 1}
    end = {"daemon_cpu_s": 1.0, "daemon_read_bytes": 6500, "cell_read_bytes": 1001}
    far = {"name": "wan_30ms", "rtt_ms": 30.0, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0}
    data = change(with_events(stored(), start, end), cell={"regime": far, "placement": {"kind": kind}})
    assert make_epoch_metrics(data)[0].storage_read_bytes == read
