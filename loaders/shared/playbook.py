"""The scripts of playbooks/ that find a server or install it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import loaders


def ask_playbook(name: str) -> Path | None:
    """Return the path that playbooks/NAME.sh prints; None where it fails. Its messages go to standard error."""
    root = Path(loaders.__file__).parents[1]
    # In an installed package the scripts are below harness.
    places = (root / "playbooks" / f"{name}.sh", root / "harness" / "playbooks" / f"{name}.sh")
    script = next(path for path in places if path.exists())
    found = subprocess.run([script], stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    return None if found.returncode else Path(found.stdout.strip())
