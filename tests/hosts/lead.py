"""Namespace hosts as site.yml leaves them, as far as a run needs: the lead reaches the others, without Ansible.

python -m tests.hosts.lead +experiment=smoke testbed=ssh testbed.inventory=/tmp/hosts.yml ...
"""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import yaml

from harness import cli
from harness.config.validation import parse
from harness.run.hosts import controller
from harness.system.program import run_program
from harness.testbed.hosts import claim
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG, Host, Inventory
from tests.hosts.init import ADMIN
from tests.hosts.namespaces import Hosts

_WRITE = 'umask 077 && mkdir -p "$(dirname "$0")" && printf "%s\\n" "$1" >"$0"'


def inventory_of(hosts: Hosts, source: Path | None = None) -> Inventory:
    """Return the inventory of namespace hosts, or a file with some of them, without asking Ansible."""
    source = source or hosts.inventory
    groups = {name: list(of["hosts"]) for name, of in yaml.safe_load(source.read_text())["all"]["children"].items()}
    found = []
    for name in dict.fromkeys(name for role in ("compute", "storage", "control", "tsdb") for name in groups[role]):
        variables = {
            "ansible_host": hosts.address(name),
            "ansible_user": ADMIN,
            "ansible_ssh_private_key_file": str(hosts.key),
            "ansible_ssh_common_args": shlex.join(hosts.ssh_options()),
            "joulefeed_data_interface": "data0",
            "joulefeed_data_address": hosts.data_address(name),
            "joulefeed_python": sys.executable,
        }
        if hosts.link_socket is not None:
            variables["joulefeed_link_socket"] = str(hosts.link_socket)
        roles = tuple(role for role in ("control", "storage", "compute", "tsdb") if name in groups[role])
        found.append(parse(Host, {**variables, "name": name, "roles": roles}, name))
    return Inventory(str(source), tuple(found))


def connect_lead(hosts: Hosts, lead: str = "compute1") -> None:
    """Let root on the lead reach the other hosts, by the configuration that site.yml would write."""
    folder = LEAD_SSH_CONFIG.parent
    config = "".join(
        f"Host {each.name}\n  HostName {hosts.address(each.name)}\n" for each in hosts.machines if each.name != lead
    )
    config += f"Host *\n  User {ADMIN}\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
    config += f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none"
    files = {"id": hosts.key.read_text().strip(), "known_hosts": hosts.known_hosts.read_text().strip()}
    for name, text in {**files, "config": config}.items():
        hosts.run(lead, "sh", "-euc", _WRITE, str(folder / name), text)


def main() -> int:
    """Run `python -m harness` on namespace hosts that are set up already; testbed.inventory names theirs."""
    controller._set_up = lambda inventory, progress, is_kept: nullcontext()
    claim.find_obstacles = lambda inventory, progress: []
    controller.Inventory = SimpleNamespace(load=lambda path: inventory_of(Hosts.of(Path(path)), Path(path)))
    return cli.main()


if __name__ == "__main__":
    run_program(main)
