"""An inventory is read through Ansible and checked; what is wrong is named with its host and key."""

import json
import os
import socket
import subprocess

import pytest

from harness.errors import ConfigError
from harness.testbed.hosts.inventory import PLAYBOOKS, Inventory, _hosts, _members

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("ansible")]

STORAGE = {"ansible_host": "192.0.2.2", "joulefeed_data_interface": "eth1", "joulefeed_data_address": "10.0.0.2"}
COMPUTE = {"ansible_host": "192.0.2.1", "joulefeed_data_interface": "eth1", "joulefeed_data_address": "10.0.0.1"}


def listed(storage=STORAGE, compute=COMPUTE, **groups):
    """What `ansible-inventory --list` says of two hosts."""
    return {
        "_meta": {"hostvars": {"s": dict(storage), "c": dict(compute)}},
        "all": {"children": ["storage", "compute"]},
        "storage": {"hosts": ["s"]},
        "compute": {"hosts": ["c"]},
        **groups,
    }


def refusal(**changes):
    with pytest.raises(ConfigError) as raised:
        _hosts(listed(**changes), "hosts.yml")
    assert "\n" not in str(raised.value)
    return str(raised.value)


EXAMPLES = {
    "two_hosts.yml": ("compute1", 1, 1, {"compute1": 0, "storage1": 0}),
    "chameleon.yml": ("uc-rtx6000", 2, 2, {"uc-rtx6000": 1, "tacc-p100": 2, "uc-skylake": 0, "tacc-storage": 0}),
    "one_gpu_host.yml": ("gpu1", 1, 1, {"gpu1": 1}),
    "four_hosts.yml": ("compute1", 2, 2, {"compute1": 1, "compute2": 1, "storage1": 0, "storage2": 0}),
}


def test_each_example_has_a_test():
    assert {path.name for path in (PLAYBOOKS / "inventories").glob("*.yml")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_loads(name):
    lead, computing, storing, gpus = EXAMPLES[name]
    inventory = Inventory.load(PLAYBOOKS / "inventories" / name)
    assert inventory.lead.name == lead
    assert len(inventory.hosts("compute")) == computing
    assert len(inventory.hosts("storage")) == storing
    assert {host.name: host.gpus for host in inventory.all} == gpus
    again = Inventory.from_json(inventory.to_json())
    assert again.all == inventory.all and again.lead == inventory.lead


def test_a_host_names_the_meters_at_its_supplies():
    plugs = ["shelly:http://192.0.2.8", "tasmota:http://192.0.2.9"]
    found = listed(storage={**STORAGE, "joulefeed_wall": "ipmi"}, compute={**COMPUTE, "joulefeed_wall": plugs})
    inventory = Inventory("hosts.yml", _hosts(found, "hosts.yml"))
    assert {host.name: host.wall for host in inventory.all} == {"c": plugs, "s": "ipmi"}
    assert Inventory.from_json(inventory.to_json()).all == inventory.all


def test_group_vars_beside_the_inventory_count_and_secrets_stay_out(tmp_path):
    (tmp_path / "hosts.yml").write_text(
        "all:\n  hosts:\n    one: {ansible_host: 192.0.2.1, ansible_become_password: secret, influxdb_token: secret}\n"
        "  children:\n    storage: {hosts: {one: }}\n    compute: {hosts: {one: }}\n"
    )
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "compute.yml").write_text("joulefeed_gpus: 4\nansible_port: 2222\n")
    inventory = Inventory.load(tmp_path / "hosts.yml")
    assert (inventory.lead.gpus, inventory.lead.port, inventory.lead.address) == (4, 2222, "192.0.2.1")
    assert inventory.lead.roles == ("storage", "compute")
    assert "secret" not in inventory.to_json()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all: [", "cannot read it"),
        ("", "group storage has no host"),
        ("- storage: s\n", "cannot read it: YAML inventory has invalid structure, it should be a dictionary$"),
        ("all:\n  hosts: {a: nonsense}\n", "cannot read it: Invalid data from file, expected dictionary and got: nons"),
        ("$ANSIBLE_VAULT;1.1;AES256\n3862\n", "cannot read it: Attempting to decrypt but no vault secrets found"),
        ("all:\n  hosts: {a: }\nall:\n  hosts: {b: }\n", "cannot read it: .*duplicate"),
        ("all:\n  hosts:\n    one:\n", "group storage has no host"),
    ],
)
def test_a_file_that_is_no_inventory_is_refused(tmp_path, text, expected):
    (tmp_path / "hosts.yml").write_text(text)
    with pytest.raises(ConfigError, match=expected) as raised:
        Inventory.load(tmp_path / "hosts.yml")
    assert "\n" not in str(raised.value)


def test_a_script_that_fails_is_named(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="cannot read it: Inventory script returned non-zero exit code 3"):
        Inventory.load(script)


def test_a_script_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.testbed.hosts.inventory._READ_TIMEOUT_S", 1.0)
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="ansible-inventory took more than 1 s"):
        Inventory.load(script)
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(script) not in running


@pytest.mark.parametrize("name", ["", "/nowhere/hosts.yml"])
def test_a_file_that_is_not_there_is_named(name):
    with pytest.raises(ConfigError, match=rf"^inventory {name}: no such file"):
        Inventory.load(name)


def test_the_first_host_of_group_compute_leads_wherever_it_stands():
    both = listed(compute={**COMPUTE}, storage=STORAGE)
    both["_meta"]["hostvars"]["c0"] = {**COMPUTE, "ansible_host": "192.0.2.9", "joulefeed_data_address": "10.0.0.9"}
    both["all"] = {"hosts": ["c0", "s", "c"]}
    both["compute"] = {"hosts": ["c", "c0"]}
    assert Inventory("hosts.yml", _hosts(both, "hosts.yml")).lead.name == "c"


def test_hosts_of_groups_in_a_group_have_its_role():
    assert list(_members({"compute": {"children": ["gpu"]}, "gpu": {"hosts": ["g"]}}, "compute")) == ["g"]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("ansible_host", "-oProxyCommand=x", "s.ansible_host"),
        ("ansible_host", "two words", "s.ansible_host"),
        ("ansible_host", "999.1.1.1", "s.ansible_host='999.1.1.1': expected an address"),
        (
            "ansible_host",
            {"__ansible_vault": "$ANSIBLE"},
            "s.ansible_host: expected a value, not one of Ansible's vault",
        ),
        ("ansible_hots", "192.0.2.3", "s.ansible_hots: unknown key (did you mean ansible_host?)"),
        ("ansible_port", 70000, "s.ansible_port=70000: expected a port"),
        ("ansible_port", "many", "s.ansible_port='many'"),
        ("ansible_user", "-l root", "s.ansible_user"),
        ("ansible_connection", "winrm", "s.ansible_connection='winrm': expected one of ssh, local"),
        ("joulefeed_data_interface", "eth0; reboot", "s.joulefeed_data_interface"),
        ("joulefeed_data_address", "10.0.0", "s.joulefeed_data_address='10.0.0': expected an IP address"),
        ("joulefeed_data_address", "127.0.0.1", "loopback"),
        ("joulefeed_data_address", "10.0.0.1", "hosts c and s have the same joulefeed_data_address, 10.0.0.1"),
        ("ansible_host", "192.0.2.1", "hosts c and s have the same ansible_host"),
        ("joulefeed_gpus", -1, "s.joulefeed_gpus=-1: expected the number of GPUs"),
        ("joulefeed_gpus", "two", "s.joulefeed_gpus='two'"),
        ("joulefeed_python", "python3", "s.joulefeed_python='python3': expected an absolute path"),
        ("joulefeed_data_interace", "eth1", "did you mean joulefeed_data_interface?"),
        ("joulefeed_gpus", "{{ count }}", "expected a value, not a template"),
    ],
)
def test_a_wrong_variable_is_named_with_its_host(key, value, expected):
    assert expected in refusal(storage={**STORAGE, key: value})


def test_a_host_without_a_data_network_is_named():
    assert "s lacks joulefeed_data_interface" in refusal(storage={"ansible_host": "192.0.2.2"})


def test_roles_are_checked():
    stray = listed()
    del stray["compute"]
    with pytest.raises(ConfigError, match="group compute has no host"):
        _hosts(stray, "hosts.yml")
    stray["computes"] = {"hosts": ["c"]}
    with pytest.raises(ConfigError, match=r"group compute has no host: .*\(did you mean compute by computes\?\)"):
        _hosts(stray, "hosts.yml")
    stray = listed()
    stray["_meta"]["hostvars"]["stray"] = {}
    with pytest.raises(ConfigError, match="host stray is in none of the groups"):
        _hosts(stray, "hosts.yml")
    assert "group tsdb: expected one host, got s, c" in refusal(tsdb={"hosts": ["s", "c"]})
    assert "are all this machine" in refusal(
        storage={**STORAGE, "ansible_connection": "local"}, compute={**COMPUTE, "ansible_connection": "local"}
    )


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A scontrol that knows the names of a job, as the real one prints them."""

    def job(*names):
        program = tmp_path / "scontrol"
        lines = "\n".join(names)
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'show hostnames n[1-9]' ] && echo '{lines}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-9]")

    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [(2, 1, 6, "", (f"10.9.0.{name[1:]}", 0))])
    return job


def test_the_hosts_of_a_slurm_job_have_roles_by_their_order(slurm, tmp_path):
    (tmp_path / "vars.yml").write_text(json.dumps({"joulefeed_data_interface": "ib0", "ansible_user": "me"}))
    slurm("n1", "n2", "n3")
    inventory = Inventory.load(f"slurm:{tmp_path / 'vars.yml'}")
    assert {host.name: host.roles for host in inventory.all} == {
        "n1": ("control", "compute"),
        "n2": ("compute",),
        "n3": ("storage",),
    }
    assert inventory.lead.name == "n1"
    assert [host.data_address for host in inventory.all] == ["10.9.0.1", "10.9.0.2", "10.9.0.3"]
    assert "n3" in inventory.text


def test_a_slurm_job_of_one_host_has_all_roles_there(slurm):
    slurm("n1")
    assert Inventory.load("slurm:").lead.roles == ("control", "storage", "compute")


def test_slurm_without_a_job_is_one_line(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(ConfigError, match="SLURM_JOB_NODELIST is not set"):
        Inventory.load("slurm:")
