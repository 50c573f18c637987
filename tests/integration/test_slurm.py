"""The runs of a sweep as jobs of a real SLURM, whose controller and only node are this machine's, on loopback."""

import os
import shutil
import socket
import subprocess

import pytest

from joulefeed.server import find_free_port
from tests.integration.runs import BUSY, SMALL, command, places, run, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="SLURM's daemons need root"),
]
PATH = f"{os.environ['PATH']}:/usr/sbin"
CONFIG = """\
ClusterName=joulefeed
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP MaxTime=60
"""
SWEEP = ["--multirun", "+experiment=smoke", *SMALL, *BUSY, "~loaders.dali", "~loaders.streaming"]
SWEEP += ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "hydra.launcher.array_parallelism=1"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Return the environment in which sbatch finds a cluster of one node, this machine."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o400)
    key.write_bytes(os.urandom(64))
    values = {"host": socket.gethostname().partition(".")[0], "cpus": os.cpu_count()}
    values |= {name: find_free_port() for name in ("controller", "node")}
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, **values))
    env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = ["--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started = []
    try:
        for argv in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            program = shutil.which(argv[0], path=PATH)
            assert program, f"{argv[0]} is not installed: playbooks/slurm.sh installs it"
            with (folder / f"{argv[0]}.out").open("wb") as out:
                started.append(subprocess.Popen([program, *argv[1:]], env=env, stdout=out, stderr=out))
            assert wait_until((folder / "munge.socket").exists)
        assert wait_until(lambda: "idle" in run(["sinfo", "-h"], env=env).stdout, 60), (
            folder / "slurmd.out"
        ).read_text()
        yield env
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def test_each_run_of_a_sweep_is_a_job_and_all_are_in_one_table_and_status(slurm, tmp_path):
    done = run(command(*SWEEP, *places(tmp_path), "workload.batch_size=8,9999,16"), env=slurm)
    assert done.returncode == 2, done.stderr
    table = done.stdout[done.stdout.index("\njob ") :]
    for number, size in enumerate((8, 9999, 16), 1):
        assert f"{number}: workloads.resnet50.batch_size={size}\n" in table
    assert "batch_size=9999 is larger than the dataset" in table
    folders = sorted((tmp_path / "results").glob("2*_smoke"))
    assert len(folders) == 2 and all(str(folder) in table.replace("\n", "") for folder in folders)


def test_a_job_that_is_cancelled_keeps_its_cells_and_the_others_run(slurm, tmp_path):
    argv = command(*SWEEP, *places(tmp_path), "repeats=1,40")
    with subprocess.Popen(argv, env=slurm, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        assert wait_until(lambda: list((tmp_path / "results").glob("2*_smoke/cells/*r2-*")), 120)
        running = run(["squeue", "--noheader", "--format=%i", "--states=R"], env=slurm).stdout.split()
        assert len(running) == 1
        assert run(["scancel", *running], env=slurm).returncode == 0
        told, problems = sweep.communicate(timeout=120)
    assert sweep.returncode == 143, problems
    assert "interrupted by signal 15" in told
    assert [len(list(folder.glob("cells/*-r1-*"))) for folder in (tmp_path / "results").glob("2*_smoke")] == [1, 1]


def test_a_job_that_slurm_refuses_is_one_line(slurm, tmp_path):
    argv = command(*SWEEP, *places(tmp_path), "repeats=1,2", "hydra.launcher.partition=nowhere")
    done = run(argv, env=slurm)
    assert done.returncode == 4
    assert "error: hydra/launcher=submitit_slurm: " in done.stderr and "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
