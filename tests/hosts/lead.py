"""Namespace hosts as site.yml leaves them, as far as a run needs: the lead reaches the others, without Ansible.

python -m tests.hosts.lead +experiment=smoke testbed=ssh testbed.inventory=/tmp/hosts.yml ...
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import yaml

from harness import __main__ as cli
from harness.run.hosts import controller
from harness.system.program import run_program
from harness.testbed.hosts import preflight
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG, Inventory, _hosts
from tests.hosts.init import ADMIN
from tests.hosts.namespaces import Hosts

_WRITE = 'umask 077 && mkdir -p "$(dirname "$0")" && printf "%s\\n" "$1" >"$0"'


def inventory_of(source: Path) -> Inventory:
    """Return the inventory in a file that `Hosts.describe` described, without asking Ansible."""
    everything = yaml.safe_load(source.read_text())["all"]
    groups = {name: {"hosts": list(of["hosts"])} for name, of in everything["children"].items()}
    names = {name for group in groups.values() for name in group["hosts"]}
    variables = {name: everything["vars"] | own for name, own in everything["hosts"].items() if name in names}
    return Inventory(str(source), _hosts({"_meta": {"hostvars": variables}, **groups}, str(source)))


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
    preflight.find_obstacles = lambda inventory, progress: []
    controller.Inventory = SimpleNamespace(load=lambda path: inventory_of(Path(path)))
    return cli.main()


if __name__ == "__main__":
    run_program(main)
