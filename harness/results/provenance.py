"""What a run was measured on, each field with its source and how it was had, and how two such records differ."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import psutil

_PACKAGES = (
    *("joulefeed", "torch", "torchvision", "nvidia-dali-cuda130", "pyzmq", "msgpack", "pillow", "numpy"),
    *("hydra-core", "nvidia-ml-py"),
)
_SYSCTLS = (
    "kernel/perf_event_paranoid",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_no_metrics_save",
    "vm/swappiness",
)

_CODE = ("harness", "energymon", "loaders", "joulefeed", "conf")
_VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "TORCH_", "PYTORCH_", "CUDA_", "NVIDIA_"),
    *("DALI_", "SPDL_", "ENERGYMON_", "MALLOC_", "LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"),
    *("PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHON_GIL", "PYTHON_JIT"),
)
"""Environment variables, by how they begin, that change threads, allocators or libraries."""
_PASSING = frozenset({"time_utc", "frequency_mhz", "load_average", "boot_time_utc"})
"""What differs from one minute to the next."""

How: TypeAlias = Literal["measured", "declared", "inferred", "unknown"]
"""How a value was had.

measured: read from the machine or from the files that were used | declared: a person, a config or a package says so |
inferred: computed from other facts, which may mislead | unknown: not found; the value is None.
"""
Field = dict[str, Any]
"""`value`; `source`, where the value comes from; and `how`, as `How` has it."""
Provenance = dict[str, Field]
"""provenance.json: sections of fields by name; and `command`, a field without a section."""
_MEASURED_OF_DATASET: Final = frozenset({"content_hash", "samples", "bytes", "p5_kb", "median_kb", "p95_kb", "skipped"})
_DECLARED_OF_TESTBED: Final = frozenset({"kind", "run_id"})


def collect_provenance(
    command: str,
    here: Provenance,
    testbed: Mapping[str, object],
    sensors: Sequence[object],
    dataset: Mapping[str, object],
) -> Provenance:
    """Return provenance.json's content: the command, and sections of fields, each {"value", "source", "how"}.

    `here` is what `describe_machine` returned.
    """
    return {
        "command": make_field(command, "the command line", "declared"),
        **here,
        "testbed": {
            name: make_field(value, "harness.testbed", "declared" if name in _DECLARED_OF_TESTBED else "measured")
            for name, value in testbed.items()
        },
        "energy": {"sensors": make_field(sensors, "energymon")},
        "dataset": {
            name: make_field(value, "harness.datasets", "measured" if name in _MEASURED_OF_DATASET else "declared")
            for name, value in dataset.items()
        },
    }


def make_field(value: object, source: str, how: How = "measured") -> Field:
    """Return a field; one without a value is unknown."""
    return {"value": value, "source": source, "how": "unknown" if value is None else how}


def describe_machine(targets: Iterable[str]) -> Provenance:
    """Return the sections that are known before anything starts: host, packages, source, environment, installed.

    `targets` are the import paths of an experiment's classes. Their files count as source, in whatever folder.
    """
    versions = {one.name: one.version for one in metadata.distributions() if one.name}
    installed = {name: versions[name] for name in sorted(versions, key=str.lower)}
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    return {
        "host": describe_host(),
        "packages": list_packages(),
        "source": describe_source(targets),
        "environment": {name: make_field(value, "environ", "declared") for name, value in variables.items()},
        "installed": {"packages": make_field(installed, "importlib.metadata", "declared")},
    }


def list_changes(before: Provenance, now: Provenance) -> list[str]:
    """Return the differences of two records that change a measurement: "host.kernel: 6.2, was 6.1".

    Only sections that both have are compared: what `describe_machine` returns has no testbed and no sensors.
    """
    sections = [name for name in now if name in before and name not in ("command", "dataset", "heat")]
    old, new = (list_facts({name: of[name] for name in sections}) for of in (before, now))
    return [
        f"{key}: {new.get(key, 'absent')}, was {old.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def list_facts(record: Provenance) -> dict[str, str]:
    """Return the facts by which records are compared, by section and field: {"host.kernel": "6.1"}."""
    return {key: value for name, fields in record.items() for key, value in _select_facts(name, fields).items()}


def _select_facts(section: str, fields: Field) -> dict[str, str]:
    """Return the fields of a section by which two records are compared."""
    values = {name: field["value"] for name, field in fields.items() if name not in _PASSING}
    values = {name: value for name, value in values.items() if value is not None}
    match section:
        case "installed":
            values = values["packages"]
        case "packages":  # the others are among the installed ones
            values = {"python": values["python"]}
        case "source":  # other commits may have the same code
            values = {"code_sha256": values["code_sha256"]}
        case "testbed":
            plain = {name: values[name] for name in ("kind", "user_namespace", "caches") if name in values}
            values = plain | {name: (values.get(name) or {}).get("kind") for name in ("link", "mount")}
        case "energy":
            sources = {
                f"{channel['domain']}={channel.get('source', sensor.get('source'))}"
                for sensor in values["sensors"]
                for channel in sensor["channels"]
            }
            values = {"sensors": ", ".join(sorted(sources)) or "none"}
    return {f"{section}.{name}": str(value) for name, value in values.items()}


def describe_host() -> dict[str, Field]:
    """Return what the machine is and how it is set."""
    fields: dict[str, Field] = {}

    def add(name: str, where: str, read: Callable[[], object], how: How = "measured") -> None:
        try:
            value = read() or None
        except (OSError, ValueError, StopIteration, IndexError):
            value = None
        fields[name] = make_field(value, where, how)

    cpu = Path("/sys/devices/system/cpu")
    add("time_utc", "clock", lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    add("hostname", "uname", platform.node)
    add("os", "/etc/os-release", lambda: platform.freedesktop_os_release()["PRETTY_NAME"])
    add("kernel", "uname", platform.release)
    add("cpu", "/proc/cpuinfo", _read_cpu_model)
    add("logical_cpus", "sched_getaffinity", lambda: len(os.sched_getaffinity(0)))
    add("memory_gib", "/proc/meminfo", lambda: round(psutil.virtual_memory().total / 2**30, 1))
    add("governor", "cpufreq", lambda: (cpu / "cpu0/cpufreq/scaling_governor").read_text().strip())
    add("no_turbo", "intel_pstate", lambda: (cpu / "intel_pstate/no_turbo").read_text().strip())
    add("frequency_mhz", "/proc/cpuinfo", _read_frequency_mhz)
    add("load_average", "getloadavg", lambda: list(os.getloadavg()))
    add("boot_time_utc", "/proc/stat", lambda: datetime.fromtimestamp(psutil.boot_time(), UTC).isoformat())
    add("virtual_machine", "systemd-detect-virt", lambda: _run_command(["systemd-detect-virt"]), "inferred")
    add("gpus", "nvidia-smi", (_run_command(["nvidia-smi", "-L"]) or "").splitlines)
    for name in _SYSCTLS:
        add(name.replace("/", "."), "sysctl", lambda name=name: Path("/proc/sys", name).read_text().strip())  # type: ignore[misc]
    return fields


def list_packages() -> dict[str, Field]:
    """Return the versions of Python and of the packages that the figures depend on."""
    found = {"python": make_field(sys.version.split()[0], "sys.version")}
    for name in _PACKAGES:
        try:
            found[name] = make_field(metadata.version(name), "importlib.metadata", "declared")
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_source(targets: Iterable[str] = ()) -> dict[str, Field]:
    """Return a checksum of the code, with the code of `targets` (import paths of classes).

    Of a checkout also its commit and whether the code was changed.
    """
    root = Path(__file__).resolve().parents[2]
    code = {"code_sha256": make_field(hash_code(root, targets), "the files of joulefeed and of its loaders")}
    if not (root / ".git").exists():
        return code
    commit = _run_command(["git", "-C", str(root), "rev-parse", "HEAD"])
    if not commit:
        return code
    changed = _run_command(["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain", "--", *_CODE])
    return code | {"commit": make_field(commit, "git rev-parse"), "changed": make_field(bool(changed), "git status")}


def hash_code(root: Path, targets: Iterable[str] = ()) -> str:
    """Return a checksum of the code of a checkout, with the code of `targets` (import paths of classes)."""
    files = [path for name in _CODE for kind in ("py", "yaml", "c") for path in (root / name).rglob(f"*.{kind}")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    for module in sorted({target.rpartition(".")[0] for target in targets if target.split(".")[0] not in _CODE}):
        found = find_spec(module)
        if found is not None and found.origin is not None and Path(found.origin).is_file():
            digest.update(f"{module}\0".encode() + Path(found.origin).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _read_frequency_mhz() -> int | None:
    # Arm's /proc/cpuinfo, and some virtual machines', have none.
    frequency = psutil.cpu_freq()
    return None if frequency is None else round(frequency.current)


def _read_cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def _run_command(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    print(json.dumps(describe_machine(sys.argv[1:])))
