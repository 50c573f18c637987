"""What a run was measured on, each field with where it came from; what cannot be found is absent."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

__all__ = ["host", "packages", "provenance", "source"]

_PACKAGES = (
    "joulefeed",
    "torch",
    "torchvision",
    "nvidia-dali-cuda130",
    "pyzmq",
    "msgpack",
    "pillow",
    "numpy",
    "hydra-core",
    "nvidia-ml-py",
)
_SYSCTLS = (
    "kernel/perf_event_paranoid",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_no_metrics_save",
    "vm/swappiness",
)

Field = dict[str, Any]


def provenance(
    command: str, testbed: Mapping[str, Any], sensors: list[Any], dataset: Mapping[str, Any]
) -> dict[str, Any]:
    """Return provenance.json's content: the command, and sections of fields, each {"value", "source"}."""
    return {
        "command": {"value": command, "source": "the command line"},
        "host": host(),
        "packages": packages(),
        "source": source(),
        "testbed": {k: {"value": v, "source": "harness.testbed"} for k, v in testbed.items()},
        "energy": {"sensors": {"value": sensors, "source": "energymon"}},
        "dataset": {k: {"value": v, "source": "harness.datasets"} for k, v in dataset.items()},
    }


def host() -> dict[str, Field]:
    """Return what the machine is and how it is set."""
    fields: dict[str, Field] = {}

    def add(name: str, where: str, read: Callable[[], Any]) -> None:
        try:
            value = read()
        except (OSError, ValueError, StopIteration, IndexError):
            return
        if value not in (None, "", []):
            fields[name] = {"value": value, "source": where}

    cpu = Path("/sys/devices/system/cpu")
    add("time_utc", "clock", lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    add("os", "/etc/os-release", lambda: platform.freedesktop_os_release()["PRETTY_NAME"])
    add("kernel", "uname", platform.release)
    add("cpu", "/proc/cpuinfo", _cpu_model)
    add("logical_cpus", "sched_getaffinity", lambda: len(os.sched_getaffinity(0)))
    add("memory_gib", "/proc/meminfo", lambda: round(psutil.virtual_memory().total / 2**30, 1))
    add("governor", "cpufreq", lambda: (cpu / "cpu0/cpufreq/scaling_governor").read_text().strip())
    add("no_turbo", "intel_pstate", lambda: (cpu / "intel_pstate/no_turbo").read_text().strip())
    add("frequency_mhz", "/proc/cpuinfo", lambda: round(psutil.cpu_freq().current))
    add("load_average", "getloadavg", lambda: list(os.getloadavg()))
    add("boot_time_utc", "/proc/stat", lambda: datetime.fromtimestamp(psutil.boot_time(), UTC).isoformat())
    add("virtual_machine", "systemd-detect-virt", lambda: _output(["systemd-detect-virt"]))
    add("gpus", "nvidia-smi", _gpus)
    for name in _SYSCTLS:
        add(name.replace("/", "."), "sysctl", lambda name=name: Path("/proc/sys", name).read_text().strip())  # type: ignore[misc]
    return fields


def packages() -> dict[str, Field]:
    """Return the versions of Python and of the packages that the figures depend on."""
    found: dict[str, Field] = {"python": {"value": sys.version.split()[0], "source": "sys.version"}}
    for name in _PACKAGES:
        try:
            found[name] = {"value": metadata.version(name), "source": "importlib.metadata"}
        except metadata.PackageNotFoundError:
            continue
    return found


def source() -> dict[str, Field]:
    """Return the commit of a checkout and whether it was changed; empty for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return {}
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if not commit:
        return {}
    changed = _output(["git", "-C", str(root), "status", "--porcelain"])
    return {
        "commit": {"value": commit, "source": "git rev-parse"},
        "changed": {"value": bool(changed), "source": "git status"},
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def _gpus() -> list[str]:
    return (_output(["nvidia-smi", "-L"]) or "").splitlines()


def _output(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
