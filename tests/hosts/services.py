"""The daemons that site.yml starts where an inventory asks for them: what they need, and whether they answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.hosts.namespaces import Hosts


def make_shards(hosts: Hosts, host: str) -> Path:
    """Make shards of a few records on a host and return their folder there."""
    make = (
        "import pathlib, subprocess, sys; folder = pathlib.Path('/srv/images'); folder.mkdir();"
        "[(folder / f'{i}.jpg').write_bytes(bytes(9)) for i in range(4)];"
        "sys.exit(subprocess.call([sys.executable, '-m', 'loaders.streaming', 'convert', '--from', 'image-tree',"
        "'/srv/images', '--out', '/srv/shards']))"
    )
    hosts.run(host, sys.executable, "-c", make, timeout_s=120)
    return Path("/srv/shards")


def read_daemon_health(hosts: Hosts) -> str:
    """Return what the streaming unit of storage1 tells compute1, which site.yml gave its keys."""
    endpoint = f"tcp://{hosts.data_address('storage1')}:5557"
    ask = ["-m", "loaders.streaming", "health", "--endpoint", endpoint, "--keys", "/var/lib/joulefeed/keys/storage1"]
    return hosts.run("compute1", sys.executable, *ask)


def ask_for_daemons(inventory: dict[str, Any], shards: Path) -> None:
    """Have an inventory, as `Hosts.describe` returns it, ask for an agent on each host and a daemon with shards."""
    inventory["all"]["vars"] |= {"energymon_service": True, "energymon_options": "--estimate missing"}
    # The tests' interpreter may be in root's home.
    inventory["all"]["vars"] |= {"streaming_root": str(shards), "base_daemon_user": "root"}
