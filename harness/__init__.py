"""The experiment, from config to report."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def _hidden_package() -> str | None:
    """Say which package of this installation another one of the same name hides; None where none is hidden."""
    ours = Path(__file__).parents[1]
    for name in ("conf", "energymon", "loaders", "joulefeed"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and ours not in (found := Path(spec.origin)).parents:
            theirs = found.parent if found.name == "__init__.py" else found
            return (
                f"{theirs} hides joulefeed's own package {name} ({ours / name}): rename it, start from another folder, "
                f"or with python -P"
            )
    return None


if (_hidden := _hidden_package()) is not None:
    if sys.argv[0] != "-m":
        raise ImportError(_hidden)
    print(f"error: {_hidden}", file=sys.stderr)
    sys.exit(2)
if sys.argv[:1] == ["-m"]:  # what Python sets while it looks for the module that it is to run
    from joulefeed.signals import begin_program

    begin_program()
