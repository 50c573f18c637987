"""Cells of several ranks: real processes that meet, share every epoch, wait for each other, and end together."""

import os
import signal
import time

import numpy as np
import psutil
import pytest

from harness.cell.events import read_events
from harness.cell.messages import AcceleratorRecord, CellSpec, CellState
from harness.config.regime import Regime
from harness.config.specs import AcceleratorSpec, ComponentSpec, DistributedSpec, Experiment, LoaderSpec
from harness.config.validation import parse
from harness.datasets.placement import PlacedData
from harness.errors import CellError, ConfigError
from harness.results.cells import RankEpoch
from harness.run.cells.rank_files import join_batches, make_folders, rank_events, rank_nodes, rank_records, rank_spec
from harness.run.cells.ranks import CellRanks
from harness.run.check import check_components
from harness.run.driver import hosts_of_run
from harness.testbed.base import Node
from harness.testbed.hosts.inventory import Host, Inventory
from loaders.base import Samples
from tests.harness.configs import experiment

SAMPLES = 33
BATCH = 4
LIMIT_S = 240
TEXTBOOK = AcceleratorSpec(kind="emulated", model="textbook", time_scale=0.5)
CPU = AcceleratorSpec(kind="cpu")


class Ran:
    """What the ranks of a cell wrote."""

    def __init__(self, folders):
        self.folders = folders
        self.batches = join_batches(folders)

    def of(self, rank, epoch=1):
        return self.batches.filter(
            np.logical_and(self.batches["rank"].to_numpy() == rank, self.batches["epoch"].to_numpy() == epoch)
        )

    def ids(self, epoch):
        part = self.batches.filter(self.batches["epoch"].to_numpy() == epoch)
        return sorted(part["ids"].combine_chunks().flatten().to_pylist())


def specs_of(folders, tmp_path, accelerator, epochs, **params):
    root = tmp_path / "tree"
    root.mkdir(exist_ok=True)
    for n in range(SAMPLES):
        (root / f"{n}.bin").write_bytes(bytes(1000))
    names = tuple(f"{n}.bin" for n in range(SAMPLES))
    Samples(root, names, np.zeros(SAMPLES, np.int64), np.full(SAMPLES, 1000)).save(tmp_path / "samples.parquet")
    asked = Experiment(name="ranks", distributed=DistributedSpec(world_size=len(folders)), cell_stall_min=4.0)
    nodes = [Node("compute", "rankstest")] * len(folders)
    return [
        CellSpec(
            cell_id="ranks",
            out=folder,
            loader=LoaderSpec(
                key="pytorch", target="loaders.pytorch.PyTorchLoader", params={"num_workers": 0, **params}
            ),
            workload=ComponentSpec(
                target="harness.workloads.timed.Textbook", params={"load_ms": 1.0, "batch_size": BATCH}
            ),
            accelerator=accelerator,
            samples=tmp_path / "samples.parquet",
            data_root=root,
            seed=0,
            epochs=epochs,
            warmup_samples=4,
            energy_store=tmp_path / "energy.sqlite",
            ranks=rank_spec(nodes, rank, asked),
        )
        for rank, folder in enumerate(folders)
    ]


def started(tmp_path, world_size, templates):
    cell = tmp_path / "cell"
    cell.mkdir()
    folders = make_folders(cell, world_size)
    nodes = [Node("compute", "rankstest")] * world_size
    return folders, CellRanks(nodes, folders, 240.0, templates)


def train(tmp_path, accelerator, templates, *, world_size=2, epochs=2, on_ready=lambda ranks: None, **params):
    folders, ranks = started(tmp_path, world_size, templates)
    deadline = time.monotonic() + LIMIT_S
    with ranks:
        ranks.send({"import": ["torch"]})
        assert ranks.receive(deadline, "importing").state == "imported"
        ranks.start(specs_of(folders, tmp_path, accelerator, epochs, **params))
        samples = []
        while (state := ranks.receive(deadline, "training")).state != "done":
            if state.state == "ready":
                ranks.send({"go": True})
                on_ready(ranks)
            elif state.state == "epoch_done":
                samples.append(state.samples)
    return Ran(folders), samples, state


@pytest.mark.process
def test_two_ranks_train_one_real_model_on_every_sample_once(tmp_path, templates):
    ran, samples, state = train(tmp_path, CPU, templates)
    assert samples == [SAMPLES, SAMPLES]
    assert ran.ids(1) == ran.ids(2) == list(range(SAMPLES))
    # 17 samples are 5 batches and 16 are 4: rank 1 takes part in a step for which it has none.
    assert [len(ran.of(rank)) for rank in (0, 1)] == [5, 4]
    assert not ran.batches["sync_s"].null_count
    assert state.accelerator.gradient_bytes == 4 * 2000
    assert state.accelerator.boards == [], "a processor is no board"
    assert state.stats["samples"] == 2 * SAMPLES
    first, second = (read_events(folder / "events.jsonl") for folder in ran.folders)
    ends = [[event for event in events if event["event"] == "epoch_end"] for events in (first, second)]
    assert all(0 < end["own_ns"] <= end["duration_ns"] for each in ends for end in each)
    assert {event["event"] for event in rank_events(ran.folders[1], 1)} >= {"rank.epoch_start", "rank.epoch_end"}


@pytest.mark.process
def test_ranks_wait_for_the_one_with_larger_batches(tmp_path, templates):
    ran, samples, _ = train(tmp_path, TEXTBOOK, templates, epochs=1, imbalance=1.0)
    assert samples == [SAMPLES]
    assert ran.ids(1) == list(range(SAMPLES))
    small, large = ran.of(0), ran.of(1)
    assert (sum(small["samples"].to_pylist()), sum(large["samples"].to_pylist())) == (11, 22)
    assert max(small["samples"].to_pylist()) == BATCH and max(large["samples"].to_pylist()) == 2 * BATCH
    assert np.median(small["sync_s"]) > np.median(large["sync_s"])


@pytest.mark.process
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_ends_the_cell_and_is_named(lost, tmp_path, templates):
    seen = []

    def kill(ranks):
        seen.extend(ranks.pids)
        os.kill(ranks.pids[lost], signal.SIGKILL)

    with pytest.raises(CellError) as raised:
        train(tmp_path, TEXTBOOK, templates, on_ready=kill)
    assert str(raised.value).startswith(f"rank {lost} of 2 on ")
    assert "was killed by SIGKILL" in str(raised.value)
    assert len(seen) == 2 and not any(psutil.pid_exists(pid) for pid in seen)


@pytest.mark.process
def test_a_rank_that_fails_is_named_and_not_the_one_that_lost_it(tmp_path, templates):
    folders, ranks = started(tmp_path, 2, templates)
    specs = specs_of(folders, tmp_path, TEXTBOOK, 1)
    with pytest.raises(CellError, match=r"^rank 1 of 2 on .*7\.bin"), ranks:
        deadline = time.monotonic() + LIMIT_S
        ranks.send({"import": ["torch"]})
        ranks.receive(deadline, "importing")
        ranks.start(specs)
        while ranks.receive(deadline, "training").state != "done":
            seven = next(rank for rank in (0, 1) if 7 in share_of(rank))
            assert seven == 1
            (tmp_path / "tree" / "7.bin").unlink(missing_ok=True)
            ranks.send({"go": True})


def share_of(rank):
    from loaders.shared.shares import Share

    return Share(SAMPLES, 0, rank, 2, "uneven").order(1).tolist()


class Alone:
    """A loader without a share of the samples."""

    def __init__(self, *, samples, transform, batch_size, seed, device="cpu"):
        raise NotImplementedError

    epoch = stats = close = None


def test_a_loader_that_cannot_read_a_share_is_refused_by_name():
    alone = "+loaders.alone={_target_: tests.harness.run.test_ranks.Alone}"
    asked = experiment("+experiment=smoke", "distributed.world_size=2", alone)
    with pytest.raises(ConfigError, match=r"loaders\.alone \(.*Alone\) .* rank, world_size"):
        check_components(asked)


def test_a_sharded_dataset_needs_a_rank_on_each_node():
    with pytest.raises(ConfigError, match=r"distributed\.world_size=1: placement=sharded"):
        experiment("+experiment=emlio_fig10", "placement=sharded")


class OneMachine:
    """The nodes of a testbed of two namespaces."""

    link = object()
    compute = Node("compute", "r", "10.0.0.2", "data", "/run/netns/c")
    storage = Node("storage", "r", "10.0.0.1", "data", "/run/netns/s")
    computes = (compute, Node("compute", "r", "10.0.0.1", "data", "/run/netns/s"))


def test_the_storage_node_of_one_machine_trains_only_where_data_is_sharded():
    def addresses(placement, world_size):
        spec = Experiment(name="x", placement=placement, distributed=DistributedSpec(world_size=world_size))
        return [node.address for node in rank_nodes(OneMachine, spec, world_size)]

    assert addresses("remote", 3) == ["10.0.0.2"] * 3
    assert addresses("sharded", 3) == ["10.0.0.2", "10.0.0.1", "10.0.0.2"]


def test_ranks_on_two_nodes_use_the_data_network_and_on_one_loopback():
    spec = Experiment(name="x", distributed=DistributedSpec(world_size=3))
    two = [OneMachine.computes[0], OneMachine.computes[1], OneMachine.computes[0]]
    places = [rank_spec(two, rank, spec) for rank in range(3)]
    assert {(one.address, one.interface) for one in places} == {("10.0.0.2", "data")}
    assert [(one.local_rank, one.local_world_size) for one in places] == [(0, 2), (0, 1), (1, 2)]
    assert {(one.address, one.interface) for one in [rank_spec(two[:1] * 2, 1, spec)]} == {("127.0.0.1", "lo")}


def test_the_link_must_bring_a_rank_the_samples_of_the_other_node_and_gradients(tmp_path):
    import pyarrow as pa

    batches = pa.table({"epoch": [1, 1], "rank": [0, 1], "ids": [[0, 1, 2], [3, 4, 5]]})
    on_compute = np.array([True, True, False, True, False, False])
    data = PlacedData("sharded", on_compute, np.array([1, 2, 4, 8, 16, 32]), {})
    records = rank_records(OneMachine.computes, batches, data, gradient_bytes=100, has_link=True)
    assert [record.epochs for record in records] == [[RankEpoch(1, 4, 100)], [RankEpoch(1, 8, 100)]]
    local = rank_records(OneMachine.computes, batches, data, gradient_bytes=100, has_link=False)
    assert [record.epochs for record in local] == [[RankEpoch(1, 0, 0)]] * 2


def inventory(*groups):
    """Hosts by their groups: "compute", "storage", or both."""
    found = []
    for number, roles in enumerate(groups, 1):
        fields = {"name": f"h{number}", "roles": roles.split(), "ansible_host": f"10.0.0.{number}"}
        found.append(parse(Host, fields, "hosts.yml"))
    return Inventory("hosts.yml", tuple(found))


@pytest.mark.parametrize(
    ("groups", "placement", "world_size", "computes", "storages", "idle"),
    [
        (("compute", "compute", "storage", "storage"), "remote", 1, "h1", "h3 h4", "h2"),
        (("compute", "compute", "storage", "storage"), "half", 3, "h1 h2", "h3 h4", ""),
        (("compute", "compute", "storage", "storage"), "sharded", 2, "h1 h2", "h2", "h3 h4"),
        (("compute storage", "compute storage"), "sharded", 2, "h1 h2", "h2", ""),
        (("compute storage", "storage"), "remote", 1, "h1", "h2", ""),
        (("compute storage", "compute storage"), "remote", 1, "h1", "h2", ""),
    ],
)
def test_ranks_and_placement_decide_which_hosts_train_and_store(
    groups, placement, world_size, computes, storages, idle
):
    spec = Experiment(name="x", placement=placement, distributed=DistributedSpec(world_size=world_size))
    chosen = hosts_of_run(spec, inventory(*groups))
    told = [" ".join(host.name for host in hosts) for hosts in (chosen.computes, chosen.storages, chosen.idle)]
    assert told == [computes, storages, idle]


def test_hosts_that_cannot_run_an_experiment_are_refused_before_anything_starts():
    far = {"wan": Regime(name="wan", rtt_ms=30, rate_gbit=1)}
    both = DistributedSpec(world_size=2)
    with pytest.raises(ConfigError, match=r"placement=sharded .* the group has 3 \(h1, h2, h3\)"):
        hosts_of_run(Experiment(name="x", placement="sharded", distributed=both), inventory(*["compute"] * 3))
    with pytest.raises(ConfigError, match=r"host h1 both stores and computes, so regimes\.wan has no link"):
        hosts_of_run(Experiment(name="x", regimes=far), inventory("compute storage"))
    with pytest.raises(ConfigError, match=r"testbed\.memory_mb=512: ranks train on h1, h2"):
        spec = Experiment(name="x", distributed=both, testbed={"memory_mb": 512})
        hosts_of_run(spec, inventory("compute", "compute", "storage"))


def test_boards_of_all_ranks_are_counted_once():
    records = [AcceleratorRecord(kind="cuda", boards=boards) for boards in (["GPU-a"], ["GPU-b"], ["GPU-b"])]
    states = [CellState(state="done", accelerator=record, gpus=record.boards) for record in records]
    assert CellRanks._together(states).accelerator.boards == ["GPU-a", "GPU-b"]
    assert CellRanks._together(states).gpus == ["GPU-a", "GPU-b"]
