"""Whole runs, as a user starts them: rows, faults, signals, death and resume."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from energymon import SqliteStore
from harness.__main__ import main
from harness.results.files import write_json
from harness.results.folder import RunFolder
from harness.run import driver
from harness.system.process import RUN_VARIABLE
from harness.testbed.state import RunNames, RunState, living_runs, state_root
from harness.validate.__main__ import validate
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import ORG, Server, binary
from tests.energymon.influx.test_tuples import flux, paper_sum, stored_points
from tests.integration.runs import BUSY, SAMPLES, SMALL, CpuGroup, cells_of, command, ids_of, rows_of, run, wait_until

pytestmark = pytest.mark.process

SLOW = ["accelerator.kind=emulated", "accelerator.time_scale=20", "loaders.streaming.timeout_s=2"]
SLOW += ["loaders.streaming.prefetch_batches=1", "workloads.resnet50.batch_size=2"]
"""Epochs in which there is time to kill something, and most of the data is still to come."""

MARK = "JOULEFEED_TEST"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def command_for(results, cache, *overrides, experiment="smoke"):
    where = [f"results_dir={results}", f"cache_dir={cache}"]
    return command(f"+experiment={experiment}", *SMALL, *BUSY, "energy.idle_s=0", *where, *overrides)


@pytest.fixture
def harness(tmp_path, cache):
    return lambda *overrides: command_for(tmp_path / "results", cache, *overrides)


@pytest.fixture
def run_here(monkeypatch, capfd):
    """Run a command in this process, which has imported already what takes seconds to import."""

    def call(command):
        monkeypatch.setattr(sys, "argv", command[2:])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # it is set, and unset again after the test
        capfd.readouterr()
        status = main()
        told = capfd.readouterr()
        return subprocess.CompletedProcess(command, status, told.out, told.err)

    return call


def of_these_tests(cache):
    """Return the processes that were started below these tests; what they inherit tells them from those of others."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(MARK) == str(cache)]


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing(cache, shared_memory_left):
    """After all runs of this module nothing of them is left, nor of their parts that were killed."""
    shm = set(Path("/dev/shm").iterdir())
    os.environ[MARK] = str(cache)
    yield
    del os.environ[MARK]
    assert wait_until(lambda: not of_these_tests(cache))
    assert not shared_memory_left(shm)


def wait_for_epoch(results, process, loader="pytorch"):
    """Wait until a cell of the loader has begun its epoch."""

    def has_begun():
        found = results.glob(f"*/cells/{loader}-*.partial/events.jsonl")
        return process.poll() is not None or any("epoch_start" in events.read_text() for events in found)

    assert wait_until(has_begun, 200) and process.poll() is None, f"no epoch began; status {process.poll()}"


def assert_joules_add_up(folder, found):
    """Joules net of the idle baseline that the run has taken, and their parts, are those of each row."""
    for row in found:
        energy = json.loads((folder / "cells" / row["cell_id"] / "cell.json").read_text())["energy"]
        idle_w = sum(one["watts"] for one in energy["idle"] if one["domain"] == "cpu")
        parts = {name: row[f"{name}_j"] for name in ("loader", "daemon", "mount", "link", "monitor", "other")}
        net_j, idle_j = float(row["cpu_net_j"]), float(row["idle_j"])
        assert idle_w > 0
        assert idle_j == pytest.approx(idle_w * float(row["duration_s"]))
        assert net_j + idle_j == pytest.approx(float(row["cpu_j"]))
        # A machine with other work may draw more during the baseline than in the epoch.
        known = {name: float(part) for name, part in parts.items() if part}
        assert sum(known.values()) == pytest.approx(max(net_j, 0.0), abs=1e-6)
        served = {"daemon"} if row["loader"] == "streaming" else set()
        assert known.keys() == ({"loader", "monitor", "other"} | served if net_j >= 0 else set())
        assert float(row["net_j"]) < float(row["total_j"])
        assert 0 < float(row["stalled_j"]) < float(row["gpu_j"])


@dataclass(frozen=True)
class Sent:
    """A run that has ended, and the InfluxDB server that it sent its readings to, with their bucket."""

    done: subprocess.CompletedProcess
    folder: Path
    server: Server
    bucket: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache, leaves_nothing):
    """A run of all loaders beside another run."""
    root = tmp_path_factory.mktemp("whole")
    other, server = RunState.create("beside1"), Server(binary(), root / "influxdb")
    try:
        bucket, token_file = server.bucket(), root / "token"
        token_file.write_text(server.token)
        token_file.chmod(0o600)
        store = ["store=influxdb", f"store.url={server.url}", f"store.org={ORG}", f"store.bucket={bucket}"]
        store += [f"store.token_file={token_file}", "energy.idle_s=0.5", "checks.idle_cpu_pct=100"]
        done = run(command_for(root / "results", cache, *store))
        yield Sent(done, root / "results" / "latest", server, bucket)
    finally:
        server.kill()
        other.names.folder.rmdir()
        other.forget()


def test_a_run_yields_valid_rows_and_a_report(whole):
    assert whole.done.returncode == 0, whole.done.stderr
    folder, found = whole.folder, rows_of(whole.folder)
    assert {r["loader"] for r in found} == {"pytorch", "dali", "streaming"}
    assert {(r["valid"], r["samples"]) for r in found} == {("valid", str(SAMPLES))}
    assert len({r["bytes"] for r in found}) == 1
    assert_joules_add_up(folder, found)
    assert validate(RunFolder(folder.resolve())).differences == []
    assert all(float(r["cpu_j"]) > 0 for r in found)
    # A path and a command can be copied from a log, however long they are.
    assert f"\nreport: {folder.resolve() / 'report.html'}\n" in whole.done.stderr
    for name in ("config.yaml", "plan.json", "ledger.jsonl", "provenance.json", "checks.json", "report.html"):
        assert (folder / name).stat().st_size > 0, name
    for cell in (folder / "cells").iterdir():
        assert {p.name for p in cell.iterdir()} >= {
            "cell.json", "events.parquet", "batches.parquet", "energy.parquet", "link.json", "log.txt",
        }  # fmt: skip
    # A run beside another warns of it in every row.
    alone = [check for check in json.loads((folder / "checks.json").read_text()) if check["rule"] == "alone"]
    assert {check["verdict"] for check in alone} == {"warn"}
    assert len(alone) == 3 and all("beside1" in check["actual"] for check in alone)


def test_a_run_s_readings_are_on_the_server_and_its_token_is_nowhere(whole):
    folder, server, bucket = whole.folder, whole.server, whole.bucket
    with Bucket(server.settings(bucket)) as remote, SqliteStore.open(folder / "energy.sqlite") as local:
        assert remote.readings(0, 2**62) == local.readings(0, 2**62)
        sent = {(r.tick_ns, r.device, r.source, r.joules) for r in remote.readings(0, 2**62)}
    for energy in folder.glob("cells/*/energy.parquet"):
        ours = pq.read_table(energy).to_pylist()
        assert {(r["tick_ns"], r["device"], r["source"], r["joules"]) for r in ours} <= sent
    epochs = f'from(bucket: "{bucket}") |> range(start: 0) |> filter(fn: (r) => r._measurement == "epochs")'
    epochs += f' |> filter(fn: (r) => r.run == "{folder.resolve().name}" and r._field == "end_ns")'
    marks = {mark["cell"]: mark for mark in flux(server, bucket, epochs)}
    found = rows_of(folder)
    assert {cell: mark["loader"] for cell, mark in marks.items()} == {row["cell_id"]: row["loader"] for row in found}
    for row in found:
        start_ns, end_ns = (
            round(datetime.fromisoformat(row[key]).timestamp() * 1e9) for key in ("start_utc", "end_utc")
        )
        assert abs(marks[row["cell_id"]]["_value"] - end_ns) < 10_000_000
        measured = "cpu=estimate" not in row["energy_source"]
        field = "cpu_energy" if measured else "cpu_energy_estimate"
        tick_j = max(one[field] for one in stored_points(server, bucket, folder.resolve().name).values())
        summed_j = paper_sum(server, bucket, platform.node(), field, start_ns, end_ns)
        assert abs(summed_j - float(row["cpu_j"])) <= float(row["energy_error_j"] or 0) + 2 * tick_j
        # An estimate is in no sum of measurements.
        assert measured or paper_sum(server, bucket, platform.node(), "cpu_energy", start_ns, end_ns) is None
    assert server.token not in whole.done.stdout + whole.done.stderr
    for path in folder.rglob("*"):
        assert not path.is_file() or server.token.encode() not in path.read_bytes(), path
    assert str(folder.resolve()) not in run(["ps", "-eo", "args"]).stdout


def test_a_run_outlives_the_death_of_a_worker_and_a_daemon_and_goes_on_in_another_environment(
    harness, run_here, tmp_path, monkeypatch
):
    results = tmp_path / "results"
    process = subprocess.Popen(harness(*SLOW), stderr=subprocess.PIPE, text=True)
    wait_for_epoch(results, process, "*")
    planned = json.loads((results / "latest" / "plan.json").read_text())["cells"]
    victims = {"pytorch": worker_of, "streaming": daemon_of}
    for loader in (cell["loader"] for cell in planned if cell["loader"] in victims):
        wait_for_epoch(results, process, loader)
        victims[loader](process.pid).kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "worker" in said and "daemon" in said
    assert {r["loader"] for r in rows_of(results / "latest")} == {"dali"}
    (damaged,) = (results / "latest" / "cells").glob("dali-*")
    os.truncate(damaged / "batches.parquet", 100)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    refused = run_here(harness(*SLOW, "resume=latest"))
    assert refused.returncode == 2
    assert "environment.OMP_NUM_THREADS: 3, was absent" in refused.stderr and "resume_mixed=true" in refused.stderr
    done = run_here(harness(*SLOW, "resume=latest", "resume_mixed=true"))
    assert done.returncode in (0, 6), done.stderr
    page = (results / "latest" / "report.html").read_text()
    assert "provenance-2.json" in page
    # All that counts was measured in this session: what was measured before is set aside.
    checks = json.loads((results / "latest" / "checks.json").read_text())
    assert [check["verdict"] for check in checks if check["rule"] == "same_place"] == ["not applicable"] * 3
    assert f"{damaged.name}.damaged-1" in done.stderr
    again = f"resume={(results / 'latest').resolve().name} results_dir={results} resume_mixed=true "
    again += "resume_invalid=true\n"
    found = rows_of(results / "latest")
    if invalid := [r for r in found if r["valid"] != "valid"]:  # other work on this machine disturbed it
        said = f"{len(invalid)} of 3 rows are invalid; measure them again with: python -m harness {again}"
        assert said in done.stderr and done.returncode == 6
    assert [r["cell_id"] for r in found] == [c["cell_id"] for c in planned]
    assert {r["samples"] for r in found} == {str(SAMPLES)}
    assert len(list(results.glob("2*"))) == 1
    for loader in ("pytorch", "streaming"):
        assert list((results / "latest" / "cells").glob(f"{loader}-*.failed-1"))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a control group with a CPU quota")
def test_a_cell_that_was_disturbed_is_measured_again_at_the_end_and_the_run_is_whole(harness, tmp_path):
    results, group = tmp_path / "results", CpuGroup()
    argv = harness(*SLOW, "~loaders.dali", "~loaders.streaming", "repeats=6", "retries=2")
    process = subprocess.Popen(
        [part for part in argv if "loaders.streaming." not in part], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_epoch(results, process)
        cells = cells_of(process.pid)
        workers = [one for cell in cells for one in cell.children(recursive=True)]
        group.limit([one.pid for one in (*cells, *workers)])
        time.sleep(1)
        group.lift()
        watched = run([sys.executable, "-m", "harness.run.watch", str(results / "latest"), "--once"])
        assert watched.returncode == 0 and "of 6 cells" in watched.stdout
        _, said = process.communicate(timeout=280)
    finally:
        process.kill()
        group.remove()
    assert process.returncode == 0, said
    assert "1 cell is measured again (try 1 of retries=2)" in said
    assert "disturbed (throttled): 1 row; to help: raise the CPU quota" in said
    (refused,) = rows_of(results / "latest", "refused.csv")
    found = rows_of(results / "latest")
    assert "throttled" in refused["valid"]
    assert {row["valid"] for row in found} == {"valid"} and len(found) == 6
    (kept,) = (results / "latest" / "cells").glob("*.invalid-1")
    assert kept.name == f"{refused['cell_id']}.invalid-1"


def daemon_of(harness_pid):
    serving = {
        p.pid: p
        for p in psutil.Process(harness_pid).children(recursive=True)
        if "loaders.streaming" in p.cmdline() and "serve" in p.cmdline()
    }
    (daemon,) = [p for p in serving.values() if p.ppid() not in serving]  # it serves in a child
    return daemon


def worker_of(harness_pid):
    # The epoch begins before they do.
    return wait_until(lambda: [child for cell in cells_of(harness_pid) for child in cell.children()], 30)[0]


def test_a_signal_ends_the_run_with_its_status_and_says_how_to_go_on(harness, tmp_path):
    argv = [part for part in harness(*SLOW, "~loaders.dali", "~loaders.streaming") if "loaders.streaming." not in part]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    wait_for_epoch(tmp_path / "results", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert f"resume={(tmp_path / 'results' / 'latest').resolve().name}" in said
    assert "Traceback" not in said


@dataclass(frozen=True)
class Resumed:
    """A run over the link that was killed in an epoch and then finished."""

    results: Path
    had_namespaces: bool
    traces: Sequence[set[str]]
    """What there was before, once the clean-up after the kill had its time, and after the end."""
    finished: subprocess.CompletedProcess


def kill_and_resume_over_the_link(results, cache):
    wan = ["~loaders.dali", "~loaders.fixed", "~regimes.lan_0_1ms", "epochs=1"]
    wan += ["~loaders.pytorch_emlio", "~loaders.dali_emlio", "regimes.wan_30ms.rtt_ms=20", "testbed.caches=all"]
    before = traces()
    process = subprocess.Popen(command_for(results, cache, *wan, experiment="wan30ms"), stderr=subprocess.DEVNULL)
    try:
        wait_for_epoch(results, process)
        had_namespaces = any(path.exists() for path in namespaces_of(process.pid))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: traces() == before, 60)  # for the reaper, on a busy machine
    killed = traces()
    done = run(command_for(results, cache, *wan, "resume=latest", experiment="wan30ms"))
    return Resumed(results, had_namespaces, (before, killed, traces()), done)


@pytest.fixture(scope="module", autouse=True)
def link_run(tmp_path_factory, cache, leaves_nothing):
    """The run over the link, while the other tests have theirs: it mostly waits."""
    if os.geteuid() != 0:
        yield None
        return
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(kill_and_resume_over_the_link, tmp_path_factory.mktemp("link"), cache)


def namespaces_of(harness_pid):
    """Return the network namespaces that a run has, by the id of its run that its processes carry."""
    processes = psutil.Process(harness_pid).children(recursive=True)
    run_ids = {process.environ().get(RUN_VARIABLE) for process in processes if process.is_running()} - {None}
    return [path for run_id in run_ids for path in RunNames(run_id, state_root()).namespace_paths]


def traces():
    """Return the network namespaces and mounts of runs of this machine but for those of the runs that are alive."""
    alive = living_runs()
    spaces = {path.name for path in Path("/run/netns").glob("jf-*")}
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    alive |= living_runs()
    found = spaces | {mount for mount in mounts if mount.startswith(str(state_root()))}
    return {name for name in found if not any(run_id in name for run_id in alive)}


BAD = {
    "+experiment=nowhere": "wan30ms",
    "loaders.pytorch.num_wokers=3": "did you mean num_workers",
    "+loaders.pytorch.workers=3": "takes no such key",
    "+workload.images=3": "workloads.resnet50.images",
    "regimes.local.rtt_ms=-1": "regimes.local.rtt_ms",
    "workloads.resnet50.batch_size=4096": "larger than the dataset",
    "dataset.root=/no/such/place": "dataset.root",
    "loaders.pytorch._target_=no.such.Loader": "cannot be imported",
    "resume=nothing": "no run with a plan.json",
    "resume_invalid=true": "only with resume=FOLDER",
    "loaders.streaming.daemon.module=null": "daemon.module",
    "+loaders.streaming.daemon.treads=2": "loaders.streaming.daemon.treads",
    "figures=[nope]": "nope",
    "accelerator=cuda": "accelerator",
    "experiment=smoke": "experiment=smoke: write it with a plus: +experiment=smoke",
    "regime=wan_30ms": "+regime@regimes.wan_30ms=wan_30ms adds one; regime@regimes.local=wan_30ms replaces local",
    "dataset.samples=1000000000": "dataset.samples=1000000000: about 243 TB are needed",
    "+regime@regimes.wan_30ms=wan_30ms": "testbed=local: regimes.wan_30ms has a link",
    "--repeats=2": "--repeats=2: no such flag",
}
"""Overrides, and what the message has to have in it."""


def refused(command, override):
    """Return the arguments of a bad command, without an experiment beside a bad one."""
    return command[3 + override.lstrip("+").startswith("experiment=") :]


def judge(status, said, message):
    assert status in (1, 2), said
    assert said.startswith("error: ") and said.count("\n") == 1, said
    assert message in said


@pytest.mark.parametrize("override", BAD)
def test_bad_input_is_one_message_and_no_run(override, harness, run_here, tmp_path):
    done = run_here(["", "", "harness", *refused(harness(override), override)])
    judge(done.returncode, done.stderr, BAD[override])
    assert not list((tmp_path / "results").glob("2*"))


def test_a_folder_of_a_run_that_is_alive_is_not_resumed(harness, run_here, tmp_path):
    alive = RunFolder.create(tmp_path / "results", "smoke")
    write_json(alive.plan, {"cells": []})
    alive.point_latest()
    with alive.hold_lock():
        done = run_here(harness("resume=latest"))
    judge(done.returncode, done.stderr, f"process {os.getpid()} on")


def test_the_command_says_of_bad_input_what_its_function_does(harness, tmp_path):
    override = "+loaders.pytorch.workers=3"
    done = run(harness(override))
    judge(done.returncode, done.stderr, BAD[override])
    assert not list((tmp_path / "results").glob("2*"))


def test_a_taken_port_fails_the_cell_with_the_port_and_no_other_config_resumes_the_run(harness, run_here):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        only = [f"loaders.streaming.daemon.port={taken.getsockname()[1]}", "~loaders.dali", "~loaders.pytorch"]
        done = run_here(harness(*only))
    assert done.returncode == 3
    assert only[0].rpartition("=")[2] in done.stderr
    done = run_here(harness(*only, "resume=latest", "seed=7"))
    assert done.returncode == 2
    assert "seed: 7, was 0" in done.stderr


def test_the_figure_of_a_sweep_is_one_yaml_beside_the_run(harness, run_here, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_ROUND_S", 0.0)
    docs = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
    figure = tmp_path / "memory_by_workers.yaml"
    figure.write_text(re.search(r"<!-- worked example: figure -->\n```yaml\n(.*?)```", docs, re.DOTALL)[1])
    only = ["~loaders.dali", "~loaders.streaming", "+loaders.pytorch.sweep={num_workers: [1, 2]}"]
    done = run_here(harness(*only, f"figures=[{figure}]", "repeats=2"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "latest"
    first = done.stderr.replace("\n", "").partition("first figures, of one repeat: ")
    assert "[2/4" in first[0] and "[3/4" in first[2]
    assert first[2].startswith(str(folder.resolve() / "report.html"))
    text = (folder / "figures" / "memory_by_workers.svg").read_text()
    assert "Memory of the cell and its workers" in text and "PyTorch" in text
    assert "The peak of an epoch in the run smoke" in (folder / "report.html").read_text()
    assert {row["loader"] for row in rows_of(folder)} == {"pytorch_num_workers_1", "pytorch_num_workers_2"}


def test_multirun_makes_a_results_folder_a_job_and_one_table(harness, run_here, tmp_path):
    only = ["~loaders.dali", "~loaders.streaming", "workload.batch_size=8,9999,16"]
    done = run_here(harness("--multirun", *only))
    assert done.returncode == 2, done.stderr
    assert "workloads.resnet50.batch_size=9999" in done.stderr
    table = done.stdout[done.stdout.index("\njob ") :]
    for number, size in enumerate((8, 9999, 16), 1):
        assert f"{number}: workloads.resnet50.batch_size={size}\n" in table
    folders = sorted((tmp_path / "results").glob("2*_smoke"))
    assert len(folders) == 2
    assert all(str(folder) in table.replace("\n", "") for folder in folders)
    assert [
        yaml.safe_load((f / "config.yaml").read_text())["workloads"]["resnet50"]["batch_size"] for f in folders
    ] == [8, 16]
    assert len(list((tmp_path / "results" / "multirun").glob("*/multirun.yaml"))) == 1


def test_help_names_every_experiment(run_here):
    done = run_here(["", "", "harness", "--help"])
    assert done.returncode == 0
    for path in Path("conf/experiment").glob("*.yaml"):
        assert path.stem in done.stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_run_over_the_link_survives_sigkill_and_is_resumed_to_the_same_samples(link_run):
    resumed = link_run.result(timeout=280)
    before, killed, after = resumed.traces
    assert resumed.had_namespaces
    assert killed == before
    assert resumed.finished.returncode == 0, resumed.finished.stderr
    assert after == before
    folder = resumed.results / "latest"
    found = rows_of(folder)
    assert sorted((r["loader"], r["rtt_ms"]) for r in found) == [("pytorch", "20.0"), ("streaming", "20.0")]
    # It was killed in PyTorch's epoch, whose readers had been found before.
    assert "are read at once" not in resumed.finished.stderr
    readers = json.loads((folder / "readers.json").read_text())["pytorch resnet50 wan_30ms"]["readers"]
    assert {row["cell_id"].partition("-")[0]: row["readers"] for row in rows_of(folder, "metrics.csv")} == {
        "pytorch": str(readers),
        "streaming": "",
    }
    for row in found:
        cell = folder / "cells" / row["cell_id"]
        assert ids_of(cell) == list(range(SAMPLES))
        assert json.loads((cell / "link.json").read_text())["epochs"][0]["rx_bytes"] >= int(row["bytes"])
        # A busy machine may spoil a probe; then the row says so.
        assert row["valid"] == "valid" or "expected" in row["valid"]
