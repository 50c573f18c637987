"""The number of files that a loader should read at once: that beyond which it gains less than 3 %; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_GAIN: Final = 1.03
"""Factor on the rate that makes more readers worth it."""
LIMIT_S: Final = 20.0
"""After which no other number is tried."""
_LADDER: Final = (2, 4, 8, 12, 16, 24, 32, 48)
_NO_GAIN: Final = 2
"""So many larger numbers in turn without a gain end the search: one may be a disturbance."""


@dataclass(frozen=True, slots=True)
class FoundReaders:
    """What a search found."""

    readers: int
    rates: Mapping[int, float | None]
    """Samples/s of the pieces, by number of readers; None where the epoch is too short for a piece."""
    is_whole: bool = True
    """Whether it ended before its limit."""

    def describe(self, regime: str) -> str:
        """Return the number and the rates of a regime in a sentence."""
        rates = ", ".join(f"{rate:.3g} with {number}" for number, rate in sorted(known_rates(self.rates).items()))
        ended = "" if self.is_whole else f"; the search ended after {LIMIT_S:g} s, and more may be quicker"
        if too_many := [number for number, rate in self.rates.items() if rate is None]:
            ended += f"; the epoch is too short to try {min(too_many)}"
        number = f"{self.readers} files are read at once in {regime}"
        if not rates:
            return f"{number}{ended}"
        return f"{number}, as found before the first epoch ({rates} samples/s{ended})"


def known_rates(rates: Mapping[int, float | None]) -> dict[int, float]:
    """Return the rates without those that are unknown."""
    return {number: rate for number, rate in rates.items() if rate is not None}


def choose_readers(rates: Mapping[int, float | None]) -> int:
    """Return the least number whose rate is within 3 % of the best one; the least of all where no rate is known."""
    known = known_rates(rates)
    best = max(known.values(), default=0.0)
    return min((number for number, rate in known.items() if _GAIN * rate >= best), default=min(rates))


def find_next(rates: Mapping[int, float | None]) -> int | None:
    """Return the number of readers to try after these; None where the search is over.

    A rate is None where the epoch is too short for a piece with so many readers.
    """
    known = known_rates(rates)
    later = [number for number in _LADDER if number not in rates]
    if later and len(known) == len(rates):
        larger = [number for number in known if number > choose_readers(known)] if known else []
        if len(larger) < _NO_GAIN:
            return later[0]
    return 1 if known and 1 not in rates and choose_readers(known) == _LADDER[0] else None
