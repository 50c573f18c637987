"""Hosts with a kernel, systemd and clock of their own: netem, NFS, chrony, site.yml and teardown.yml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts import vm
from tests.hosts.namespaces import Hosts, harness_testbed, namespace_hosts, obstacles
from tests.hosts.snapshot import differences

OBSTACLES = [*obstacles(), *vm.obstacles()]
pytestmark = [
    pytest.mark.vm,
    pytest.mark.process,
    pytest.mark.serial,
    pytest.mark.root,
    pytest.mark.skipif(bool(OBSTACLES), reason=f"no virtual machines here: {'; '.join(OBSTACLES)}"),
]
NAMES = ("storage1", "compute1")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespace_hosts(virtual=True, delays=False) as made:
        yield made


def test_machines_answer_and_have_netem_nfs_and_chrony(hosts):
    for name in NAMES:
        assert hosts.ssh(name, "hostname").stdout.strip() == name
        hosts.run(name, "modprobe", "-a", "sch_netem", "ifb", "nfsd", "nfsv4")
        assert hosts.run(name, "systemctl", "is-active", "chrony").strip() == "active"
        assert not hosts.run(name, "systemctl", "--failed", "--no-legend", "--plain").strip()
    hosts.run("compute1", "ip", "route", "get", hosts.data_address("storage1"))


def test_a_second_up_changes_nothing_and_down_leaves_machines_as_they_were(hosts):
    before = {name: hosts.snapshot(name) for name in NAMES}
    told = harness_testbed(hosts, "up")
    assert all(name in told for name in NAMES)
    assert harness_testbed(hosts, "up").startswith("up: changed nothing")
    harness_testbed(hosts, "down")
    after = {name: hosts.snapshot(name) for name in NAMES}
    assert {name: differences(before[name], after[name]) for name in NAMES} == {name: {} for name in NAMES}
