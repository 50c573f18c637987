"""Hosts with a kernel, systemd and clock of their own: site.yml, a run over kernel NFS and netem, faults, teardown.yml.

The tests are stages of one use of the hosts, in this order: a machine takes a minute to start and minutes to set up.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from tests.hosts import vm
from tests.hosts.namespaces import REPO, Hosts, harness_testbed, namespace_hosts, obstacles
from tests.hosts.services import ask_for_daemons, make_shards, read_daemon_health
from tests.hosts.snapshot import Snapshot, differences

OBSTACLES = [*obstacles(), *vm.obstacles()]
pytestmark = [
    pytest.mark.vm,
    pytest.mark.process,
    pytest.mark.serial,
    pytest.mark.root,
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no virtual machines here: {'; '.join(OBSTACLES)}"),
]
NAMES = ("storage1", "compute1")
REBOOT_S = 300.0
DISTURBED = {"rtt_before", "rtt_after", "rate_before", "rate_after", "link_pause", "link_held", "others_cpu"}
DISTURBED |= {"link_in_epoch", "pressure_memory"}
"""Rules that refuse a row when other work on this machine holds a host up; every other rule must let it pass."""
RUN = (
    *("+experiment=smoke", "testbed=ssh", "testbed.keep=true", "~regimes.local", "+regime@regimes.wan_30ms=wan_30ms"),
    # A machine of one CPU carries no 1 Gbit/s, and takes no tick of 100 ms while it decodes.
    *("regimes.wan_30ms.rate_gbit=0.1", "energy.interval_ms=1000"),
    # What watches the link shares that CPU with what decodes; its kernel lets either run for several ticks of 10 ms.
    "checks.link_held_ms=40",
    *("~loaders.dali", "loaders.pytorch.num_workers=1", "accelerator=emulated"),
    *("dataset.samples=24", "workloads.resnet50.batch_size=4", "warmup_samples=4", "repeats=2"),
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(virtual=True, delays=False) as made:
        yield made


@pytest.fixture(scope="module")
def pristine(hosts: Hosts) -> dict[str, Snapshot]:
    """Return what the machines have before `up`, which starts an energy agent and a streaming daemon too."""
    inventory = hosts.describe()
    ask_for_daemons(inventory, make_shards(hosts, "storage1"))
    inventory["all"]["vars"]["energymon_interval_ms"] = 1000  # as in the run
    hosts.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
    return snapshots(hosts)


def snapshots(hosts: Hosts) -> dict[str, Snapshot]:
    with ThreadPoolExecutor(len(NAMES)) as threads:
        return dict(zip(NAMES, threads.map(hosts.snapshot, NAMES), strict=True))


def test_machines_answer_and_have_netem_nfs_and_chrony(hosts):
    for name in NAMES:
        assert hosts.ssh(name, "hostname").stdout.strip() == name
        hosts.run(name, "modprobe", "-a", "sch_netem", "ifb", "nfsd", "nfsv4")
        assert hosts.run(name, "systemctl", "is-active", "chrony").strip() == "active"
        assert not hosts.run(name, "systemctl", "--failed", "--no-legend", "--plain").strip()
    hosts.run("compute1", "ip", "route", "get", hosts.data_address("storage1"))


def test_a_clock_that_is_off_is_told_in_one_line(hosts, pristine):
    hosts.run("storage1", "date", "--set=+2 seconds")
    argv = [sys.executable, "-m", "harness.testbed", "doctor", "--inventory", str(hosts.inventory)]
    told = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False, timeout=300)
    assert told.returncode == 1, told.stdout + told.stderr
    rows = [line.split() for line in told.stdout.splitlines()]
    clocks = {row[1]: row for row in rows if row[2:3] == ["clock"]}
    assert clocks["storage1"][0] == "fail", told.stdout
    assert 1900 < float(clocks["storage1"][3]) < 2500
    assert clocks["compute1"][0] != "fail", told.stdout


def test_up_sets_the_clock(hosts, pristine):
    told = harness_testbed(hosts, "up")
    assert all(name in told for name in NAMES)
    offset_s = float(hosts.run("storage1", "chronyc", "-c", "tracking").split(",")[4])
    assert abs(offset_s) < 0.01


def test_the_agent_and_the_daemon_are_units_that_start_with_the_machine(hosts, pristine):
    units = {name: ["joulefeed-energymon"] for name in NAMES}
    units["storage1"].append("joulefeed-streaming")
    for name in NAMES:
        for unit in units[name]:
            shown = hosts.run(name, "systemctl", "show", unit, "-p", "ActiveState,UnitFileState,NRestarts", "--value")
            assert sorted(shown.split()) == ["0", "active", "enabled"], unit
    assert "uptime" in read_daemon_health(hosts)


def test_a_run_goes_over_nfs_and_netem_and_a_host_that_reboots_in_a_cell_fails_it_by_name(hosts, pristine, tmp_path):
    run = [*RUN, f"testbed.inventory={hosts.inventory}", f"results_dir={tmp_path}", f"cache_dir={tmp_path}"]
    argv = [sys.executable, "-m", "harness", *run]
    said, boot = "", boot_of(hosts, "storage1")
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as controller:
        for line in controller.stdout:
            said += line
            if line.startswith("[2/4"):  # both loaders have a row
                hosts.ssh("storage1", "sudo -n systemctl reboot")
                break
        said += controller.stdout.read()
        status = controller.wait(600)
    print(said)
    # Its site.yml is the second one in a row.
    assert ": changed" not in said
    assert status == 4, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: host storage1 is lost: "), said
    rows = list(csv.DictReader((tmp_path / "latest" / "epochs.csv").read_text().splitlines()))
    assert {row["loader"] for row in rows} == {"pytorch", "streaming"}
    for row in rows:
        broken = set(re.findall(r"(\w+) \(", row["valid"]))
        assert not broken - DISTURBED, row["valid"]
        cell = tmp_path / "latest" / "cells" / row["cell_id"]
        assert json.loads((cell / "link.json").read_text())["kind"] == "netem"
        record = json.loads((cell / "cell.json").read_text())
        assert record["mount"] == ("nfs4" if row["loader"] == "pytorch" else "none: streamed")
        assert record["hosts"][0]["clock_after"]["source"]
    deadline = time.monotonic() + REBOOT_S
    while boot_of(hosts, "storage1") in ("", boot):
        assert time.monotonic() < deadline
        time.sleep(1)


def boot_of(hosts: Hosts, name: str) -> str:
    return hosts.ssh(name, "cat /proc/sys/kernel/random/boot_id").stdout.strip()


def test_down_leaves_machines_as_they_were(hosts, pristine):
    harness_testbed(hosts, "down")
    after = snapshots(hosts)
    assert {name: differences(pristine[name], after[name]) for name in NAMES} == {name: {} for name in NAMES}
