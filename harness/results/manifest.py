"""Checksums of what a finished cell stored, so that no file that has changed since is judged as it was measured."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from harness.results.folder import write_json

__all__ = ["MANIFEST", "changed_file", "write_manifest"]

MANIFEST: Final = "manifest.json"
_JUDGED: Final = (".json", ".parquet")
"""Files from which rows come; logs are only read by people."""


def write_manifest(folder: Path) -> None:
    """Write the SHA-256 checksums of a folder's files, by name."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _JUDGED and path.name != MANIFEST)
    write_json(folder / MANIFEST, {name: _checksum(folder / name) for name in names})


def changed_file(folder: Path) -> Path | None:
    """Return a file that is not as it was when the manifest was written; None where all are, or there is no manifest.

    Raises OSError and ValueError for a manifest that cannot be read.
    """
    manifest = folder / MANIFEST
    if not manifest.exists():  # a cell of an older run
        return None
    told: dict[str, str] = json.loads(manifest.read_text())
    if not isinstance(told, dict):
        raise ValueError("expected an object")
    for name, checksum in told.items():
        path = folder / name
        if not path.is_file() or _checksum(path) != checksum:
            return path
    return None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
