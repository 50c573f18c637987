"""What to say of a key that a section does not have: what it has, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from harness.errors import ConfigError

__all__ = ["nearest", "unknown_key"]


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that is spelt most like `key`; None when none is near."""
    found = get_close_matches(key, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_key(where: str, known: Iterable[str], said: str = "unknown key", have: str = "known are") -> ConfigError:
    """Return the error for a key that is not there: its full name, the nearest spelling, and what there is.

    `where` ends with the key, such as loaders.pytorch.num_wokers; `said` is what is wrong with it and `have` goes
    before the known ones.
    """
    names = sorted(known)
    near = nearest(where.rpartition(".")[2], names)
    meant = f" (did you mean {near}?)" if near else ""
    return ConfigError(f"{where}: {said}{meant}; {have} {', '.join(names) or 'none'}")
