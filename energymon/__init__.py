"""Joules on one host: sensors sampled on a shared grid of ticks, kept in a store, integrated over windows."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from energymon.cli.public import *  # noqa: F403

if sys.argv[:1] == ["-m"]:  # what Python sets while it looks for the module that it is to run
    from joulefeed.signals import begin_program

    begin_program()


def __getattr__(name: str) -> Any:
    if name == "__all__" or not name.startswith("_"):
        from energymon.cli import public

        if name == "__all__":
            return [shown for shown in vars(public) if not shown.startswith("_")]
        if hasattr(public, name):
            return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
