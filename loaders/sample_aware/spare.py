"""How much memory a result will take, so that its block can come with the task and the worker need not ask for it."""

from __future__ import annotations

from typing import Final

__all__ = ["SizeGuess"]

_MARGIN: Final = 1.1
_FORGETS: Final = 0.995
"""By which factor the largest size counts for less with each later one."""


class SizeGuess:
    """The largest of the recent sizes, and some more."""

    def __init__(self) -> None:
        self._largest = 0.0

    @property
    def nbytes(self) -> int:
        """What the next one takes at most, as a rule; 0 before the first one."""
        return int(_MARGIN * self._largest)

    def learn(self, nbytes: int) -> None:
        """Note what one has taken."""
        self._largest = max(float(nbytes), _FORGETS * self._largest)
