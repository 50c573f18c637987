"""The hosts of a cluster: Ansible's inventory, checked before anything starts."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationInfo, field_validator

import harness
from harness.config.specs import WallMeters
from harness.config.validation import Section, parse
from harness.errors import ConfigError, TestbedError
from joulefeed.child import Child

Role = Literal["control", "storage", "compute", "tsdb"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""The groups of an inventory."""
SLURM: Final = "slurm:"
"""In place of a file: the hosts of the job in which the command runs. A file of variables may follow the colon."""
INSTALLED_PYTHON: Final = "/opt/joulefeed/venv/bin/python"
"""The interpreter that site.yml installs, on a host that names no other one."""
LEAD_SSH_CONFIG: Final = Path("/var/lib/joulefeed/ssh/config")
"""Configuration by which root's ssh on the lead reaches the other hosts by their names in the inventory: `ssh -F`."""
_PACKAGE: Final = Path(harness.__file__).parent
_IS_CHECKOUT: Final = not (_PACKAGE / "playbooks").is_dir()
PLAYBOOKS: Final = (_PACKAGE.parent if _IS_CHECKOUT else _PACKAGE) / "playbooks"
"""Of a checkout, or those that a wheel has in the package."""
_READ_TIMEOUT_S: Final = 60.0
_MAX_WORDS: Final = 100
_PREFIX: Final = "joulefeed_"
_ANSIBLE_KEYS: Final = ("host", "port", "user", "connection", "ssh_private_key_file", "ssh_common_args")
_SLIP: Final = 0.9
_ADDRESS: Final = r"^[A-Za-z0-9:][A-Za-z0-9._:%-]*$"
"""An address or a host name; never an option of ssh."""
_Variables = Mapping[str, Any]
"""What Ansible lists, by name."""
_Port = Annotated[int, Field(ge=1, le=65535, description="a port from 1 to 65535")]
_Name = Annotated[str, Field(pattern=_ADDRESS)]


class Host(Section):
    """A host, its roles, and how it is reached. Passwords and tokens of the inventory are not kept."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, dots, dashes, underscores")
    """Its name in the inventory, by which messages, logs and energy tuples call it."""
    roles: tuple[Role, ...] = Field(strict=False)
    connection: Literal["ssh", "local"] = Field(default="ssh", validation_alias="ansible_connection")
    """How the controller reaches it; local for the controller itself."""
    address: str = Field(pattern=_ADDRESS, validation_alias="ansible_host", description="an address or host name")
    """Where the controller reaches it; its name by default."""
    port: _Port = Field(default=22, validation_alias="ansible_port")
    user: str | None = Field(
        default=None, pattern=r"^[a-z_][a-z0-9_.-]*$", validation_alias="ansible_user", description="a user's name"
    )
    identity_file: str | None = Field(default=None, validation_alias="ansible_ssh_private_key_file")
    ssh_args: str = Field(default="", validation_alias="ansible_ssh_common_args")
    """Further arguments of the controller's ssh."""
    peer_address: _Name | None = Field(default=None, validation_alias="joulefeed_peer_address")
    """Where the lead reaches its SSH server; the controller's address of it by default."""
    peer_port: _Port | None = Field(default=None, validation_alias="joulefeed_peer_port")
    data_interface: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}$",
        validation_alias="joulefeed_data_interface",
        description="the interface of the data network, such as eth1",
    )
    data_address: str | None = Field(default=None, validation_alias="joulefeed_data_address")
    """Its address on the data network."""
    gpus: Annotated[int, Field(ge=0, description="the number of GPUs, 0 or more")] = Field(
        default=0, validation_alias="joulefeed_gpus"
    )
    python: str = Field(
        default=INSTALLED_PYTHON, pattern="^/", validation_alias="joulefeed_python", description="an absolute path"
    )
    """Interpreter that has this package."""
    link_socket: str | None = Field(
        default=None, pattern="^/", validation_alias="joulefeed_link_socket", description="an absolute path"
    )
    """Control socket of a delay line that carries the data network in place of netem; None for netem."""
    wall: WallMeters = Field(default=None, validation_alias="joulefeed_wall")
    """The meter at its supply, as `energy.wall` names it."""

    @field_validator("address", "data_address")
    @classmethod
    def _check_address(cls, address: str | None, info: ValidationInfo) -> str | None:
        # The controller may reach a host by a name.
        if address is not None and (info.field_name == "data_address" or set(address) <= set("0123456789.")):
            try:
                ipaddress.ip_address(address)
            except ValueError:
                also = " of the data network" if info.field_name == "data_address" else " or a host name"
                raise ValueError(f"an IP address{also}") from None
        return address


@dataclass(frozen=True, slots=True)
class Inventory:
    """The hosts of a testbed, in the inventory's order."""

    source: str
    """The file, as an absolute path, or the words by which a SLURM job was asked for."""
    all: tuple[Host, ...]
    text: str | None = None
    """The inventory as Ansible reads it, where no file has it: the one of a SLURM job."""

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Read a file of Ansible's, with its group_vars, or the hosts of this SLURM job.

        `source` is the inventory's path; `slurm:` for the job that this runs in, or `slurm:FILE` with a YAML file of
        variables that all of its hosts have.

        Raises ConfigError when the file, a host, a role or a variable is missing or wrong, or there is no SLURM job;
        the message names it. Raises TestbedError when Ansible is not installed, or SLURM does not answer.
        """
        text = None
        if str(source).startswith(SLURM):
            name, text = str(source), _slurm_inventory(str(source).removeprefix(SLURM))
            # Ansible opens an inventory several times, so it cannot be a pipe.
            with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
                file.write(text)
                file.flush()
                listed = _list_hosts(file.name, name)
        else:
            path = Path(source).expanduser()
            if not str(source) or not path.exists():
                raise ConfigError(f"inventory {source}: no such file; see {PLAYBOOKS}/inventories for examples")
            name = str(path.absolute())
            listed = _list_hosts(name, str(source))
        return cls(name, _hosts(listed, str(source)), text)

    def hosts(self, role: Role) -> tuple[Host, ...]:
        """Return the hosts of a role."""
        return tuple(host for host in self.all if role in host.roles)

    @property
    def lead(self) -> Host:
        """The host that drives a run: the first one that computes."""
        return self.hosts("compute")[0]

    def host(self, name: str) -> Host:
        """Return the host of a name; raises ConfigError where there is none."""
        for host in self.all:
            if host.name == name:
                return host
        raise ConfigError(f"{self.source}: no host {name}; known are {', '.join(host.name for host in self.all)}")

    def to_json(self) -> str:
        """Write it as JSON for the lead, without any secret."""
        return json.dumps({"source": self.source, "hosts": [host.model_dump(mode="json") for host in self.all]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written. Raises ConfigError when it is no inventory."""
        stored = json.loads(text)
        return cls(stored["source"], tuple(parse(Host, host, "hosts") for host in stored["hosts"]))


def ansible_program(name: str) -> str:
    """Return the path of one of Ansible's programs. Raises TestbedError when it is not installed."""
    path = shutil.which(name, path=ansible_environment()["PATH"])
    if path is None:
        remedy = "make ansible" if _IS_CHECKOUT else f"sh {PLAYBOOKS}/ansible.sh"
        raise TestbedError(f"{name} is not installed: `{remedy}` makes an environment with it")
    return path


def ansible_environment() -> dict[str, str]:
    """Return the environment of Ansible's programs: our settings, and its own environment first on the path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = PLAYBOOKS.parent / ".venv-ansible" if _IS_CHECKOUT else cache / "joulefeed" / "ansible-environment"
    environment = {
        **os.environ,
        "PATH": f"{own / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        # A file that is no inventory is an error, not an empty inventory.
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        # A group or a host that is there twice would lose what it has first.
        "ANSIBLE_DUPLICATE_YAML_DICT_KEY": "error",
        # ansible-runner switches it off, whatever ansible.cfg says, unless the environment has it.
        "ANSIBLE_HOST_KEY_CHECKING": "true",
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_FORCE_COLOR": "false",
        # Ansible refuses to run in another encoding.
        "LC_ALL": "C.UTF-8",
    }
    environment.pop("PYTHONPATH", None)
    return environment


def _list_hosts(path: str, source: str) -> _Variables:
    """Return what `ansible-inventory --list` says of an inventory."""
    argv = [ansible_program("ansible-inventory"), "--list", "--inventory", path]
    # An inventory may be a program, which is ended with Ansible.
    with Child(
        argv, stdin=subprocess.DEVNULL, env=ansible_environment(), keep_stderr=True, killed_with_parent=True
    ) as child:
        output = child.finish(_READ_TIMEOUT_S)
        if output is None:
            raise ConfigError(f"inventory {source}: ansible-inventory took more than {_READ_TIMEOUT_S:g} s")
        if child.process.returncode:
            words = child.stderr_lines(_MAX_WORDS)
            raise ConfigError(f"inventory {source}: Ansible cannot read it: {_reason(words, path)}")
    listed: _Variables = json.loads(output)
    return listed


def _reason(words: str, path: str) -> str:
    """Return what the plugin for this kind of file says; Ansible tries all of them, and each complains."""
    is_yaml = Path(path).suffix in {".yml", ".yaml", ".json"}
    plugin = "script" if "'script' plugin" in words else "yaml" if is_yaml else "ini"
    if found := re.search(rf"with '{plugin}' plugin: (.*?)\n(?:Failed to parse|<<<)", words, re.DOTALL):
        return " ".join(found[1].partition(", got: <class")[0].split())
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(("[ERROR]", "ERROR!"))), (lines or ["no reason given"])[-1])


def _hosts(listed: _Variables, source: str) -> tuple[Host, ...]:
    """Check what Ansible lists; raises ConfigError for the first thing that is wrong."""
    variables: Mapping[str, _Variables] = listed.get("_meta", {}).get("hostvars", {})
    members = {role: tuple(dict.fromkeys(_members(listed, role))) for role in ROLES}
    for role in ("storage", "compute"):
        if not members[role]:
            near = get_close_matches(role, [group for group in listed if group not in ROLES], 1)
            hint = f" (did you mean {role} by {near[0]}?)" if near else ""
            raise ConfigError(f"inventory {source}: group {role} has no host: expected at least one{hint}")
    if len(members["tsdb"]) > 1:
        raise ConfigError(f"inventory {source}: group tsdb: expected one host, got {', '.join(members['tsdb'])}")
    everyone = tuple(dict.fromkeys([*_members(listed, "all"), *variables]))
    hosts = []
    for name in everyone:
        roles = tuple(role for role in ROLES if name in members[role])
        if not roles:
            raise ConfigError(
                f"inventory {source}: host {name} is in none of the groups {', '.join(ROLES)}: add it to one"
            )
        hosts.append(_host(name, roles, variables.get(name, {}), source))
    # Compute hosts stand in the order of their group, because the first of them is the lead.
    order = {name: place for place, name in enumerate(members["compute"])}
    hosts.sort(key=lambda host: order.get(host.name, len(order)))
    _check_network(hosts, source)
    return tuple(hosts)


def _members(listed: _Variables, group: str) -> Iterator[str]:
    section = listed.get(group, {})
    yield from section.get("hosts", ())
    for child in section.get("children", ()):
        yield from _members(listed, child)


def _host(name: str, roles: tuple[Role, ...], variables: _Variables, source: str) -> Host:
    known = {f"ansible_{key}" for key in _ANSIBLE_KEYS}
    section = {key: value for key, value in variables.items() if key in known or key.startswith(_PREFIX)}
    for key in variables:
        # Ansible has many variables of its own: only a slip of the pen is so near to one of these.
        if key not in known and key.startswith("ansible_") and (near := get_close_matches(key, known, 1, _SLIP)):
            raise ConfigError(f"inventory {source}: {name}.{key}: unknown key (did you mean {near[0]}?)")
    for key, value in section.items():
        if isinstance(value, str) and "{{" in value:
            raise ConfigError(f"inventory {source}: {name}.{key}={value!r}: expected a value, not a template")
        if isinstance(value, dict) and "__ansible_vault" in value:
            raise ConfigError(f"inventory {source}: {name}.{key}: expected a value, not one of Ansible's vault")
    connection = str(section.get("ansible_connection", "ssh")).removeprefix("ansible.builtin.")
    section["ansible_connection"] = "ssh" if connection == "smart" else connection
    if connection == "local":
        section.setdefault("ansible_host", "127.0.0.1")
    section.setdefault("ansible_host", name)
    return parse(Host, {**section, "name": name, "roles": roles}, f"inventory {source}: {name}")


def _check_network(hosts: Sequence[Host], source: str) -> None:
    """Check what the hosts are to one another."""
    local = [host.name for host in hosts if host.connection == "local"]
    if len(local) > 1:
        raise ConfigError(f"inventory {source}: {', '.join(local)} are all this machine: expected one local host")
    _check_unique(
        {host.name: f"{host.address} port {host.port}" for host in hosts}, "ansible_host and ansible_port", source
    )
    carriers = [host for host in hosts if {"storage", "compute"} & set(host.roles)]
    if len(carriers) == 1:
        return
    for host in carriers:
        for key in ("data_interface", "data_address"):
            if getattr(host, key) is None:
                raise ConfigError(
                    f"inventory {source}: {host.name} lacks {_PREFIX}{key}: expected the "
                    f"{key.removeprefix('data_')} of its data network, which netem delays"
                )
        if ipaddress.ip_address(str(host.data_address)).is_loopback:
            raise ConfigError(
                f"inventory {source}: {host.name}.{_PREFIX}data_address={host.data_address}: expected an address that "
                "the other hosts reach, not a loopback one"
            )
    _check_unique({host.name: str(host.data_address) for host in carriers}, f"{_PREFIX}data_address", source)


def _check_unique(values: Mapping[str, str], what: str, source: str) -> None:
    seen: dict[str, str] = {}
    for name, value in values.items():
        if value in seen:
            raise ConfigError(
                f"inventory {source}: hosts {seen[value]} and {name} have the same {what}, {value}: expected "
                "one address for each"
            )
        seen[value] = name


def _slurm_inventory(variables_file: str) -> str:
    """Write the inventory of this SLURM job.

    A job of one host has all roles on it. In a larger one the last host stores and all others compute. The data network
    is the one of the hosts' names. No host has the role tsdb.
    """
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise ConfigError("slurm: SLURM_JOB_NODELIST is not set: run this in a job, by salloc or sbatch")
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True,
            text=True,
            timeout=_READ_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError("slurm: scontrol is not installed here: run this on a host of the cluster") from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"slurm: scontrol gave no answer in {_READ_TIMEOUT_S:g} s") from None
    names = done.stdout.split()
    if done.returncode or not names:
        raise TestbedError(f"slurm: scontrol show hostnames {nodes}: {done.stderr.strip() or 'no host'}")
    hosts = {name: _slurm_host(name) for name in names}
    groups = {"control": names[:1], "compute": names[:-1] or names, "storage": names[-1:]}
    everything = {
        "hosts": hosts,
        "vars": _variables(variables_file),
        "children": {group: {"hosts": dict.fromkeys(members)} for group, members in groups.items()},
    }
    return yaml.safe_dump({"all": everything}, sort_keys=False)


def _slurm_host(name: str) -> dict[str, str]:
    try:
        variables = {"joulefeed_data_address": str(socket.getaddrinfo(name, None)[0][4][0])}
    except OSError as error:
        raise TestbedError(f"slurm: host {name} of this job has no address: {error.strerror}") from None
    if name.partition(".")[0] == socket.gethostname().partition(".")[0]:
        variables["ansible_connection"] = "local"
    return variables


def _variables(file: str) -> _Variables:
    if not file:
        return {}
    try:
        found = yaml.safe_load(Path(file).expanduser().read_text())
    except OSError as error:
        raise ConfigError(f"inventory {SLURM}{file}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"inventory {SLURM}{file}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"inventory {SLURM}{file}: expected variables, such as joulefeed_data_interface: ib0")
    return found
