"""Builds the fake NVML and sets what its boards show."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
NO_DRIVER = 9
"""NVML_ERROR_DRIVER_NOT_LOADED."""
MODULE = "NVIDIA GH200 480GB"


def compiler() -> str | None:
    """Return the C compiler of this host."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the library into `folder`; return its path."""
    library = folder / "libnvidia-ml.so.1"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run([compiler() or "cc", *flags, "-o", library, SOURCE, "-lpthread"], check=True)
    return library


class Boards:
    """The file that FAKE_NVML names."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self()

    def __call__(
        self,
        boards: int = 2,
        *,
        lost: Iterable[int] = (),
        mig: Iterable[int] = (),
        power_only: Iterable[int] = (),
        counter_only: Iterable[int] = (),
        reset: Iterable[int] = (),
        modules: Iterable[int] = (),
        no_driver: bool = False,
        **settings: Mapping[int, float],
    ) -> None:
        """Show so many boards; those named in a list behave so, and `watts={0: 250}` sets any of a board's numbers."""
        now_ns = time.monotonic_ns()
        lines = [f"boards {boards}"]
        if no_driver:
            lines.append(f"driver_error {NO_DRIVER}")
        said: dict[str, dict[int, float]] = {key: dict(values) for key, values in settings.items()}

        def say(which: Iterable[int], **values: float) -> None:
            for board in which:
                for key, value in values.items():
                    said.setdefault(key, {})[board] = value

        say(lost, lost=1)
        say(mig, mig=2)
        say(power_only, no_fields=1, no_energy=1)
        say(counter_only, no_instant_field=1, no_average_field=1, no_power=1)
        say(reset, base_mj=5, origin_ns=now_ns)
        lines += [f"{key} {board} {value!r}" for key, values in said.items() for board, value in values.items()]
        lines += [f"name {board} {MODULE}" for board in modules]
        fresh = self.control.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.control)
