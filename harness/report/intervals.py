"""95 % intervals of medians, of their ratios, of numbers made from several of them, and of paired differences (pure).

The unit is the repeat. Cells are resampled whole with all their epochs, so epochs of one cell, which share its luck,
do not count as independent. Repeats are few, so the bootstrap gives a standard error alone, and the width comes from
Student's t with Welch's degrees of freedom; quantiles of three resampled values would be too narrow by far. A group of
two repeats hardly knows its own scatter: how far the cells of the run's groups usually lie apart counts with it.

A block of the plan runs every loader once, so that loaders with the same repeats ran in the same turns. From MIN_PAIRS
repeats on, a ratio is that of pairs: what a turn does to both of its cells is no difference between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from statistics import fmean, stdev
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

_MISSED: Final = 0.05
"""Share of intervals that may miss the true value."""
MIN_PAIRS: Final = 4
"""Repeats from which on two loaders are compared in pairs. Pairs have half of Welch's degrees of freedom, so that with
fewer repeats Welch's interval is the narrower one, unless turns differ by more than cells do."""
_LEAST_GROUPS: Final = 8
"""With fewer, the usual scatter of a run is not known."""
_FREEDOMS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Of the common variance: few where the groups' differ much."""
_OF_TYPICAL: Final = 0.75
"""Degrees of freedom that the common variance counts in each group. With more, loaders that scatter more than others
are called different from themselves too often."""
_LEAST_DEVIATION: Final = 1e-4
"""Times are no surer than that."""
_RESAMPLES: Final = 1000
_DRAWS: Final = 2000
_MOST_FREEDOM: Final = 1000.0
_SEED: Final = 0
"""The same rows always have the same interval."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval of a number."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether the interval holds a value: of a ratio 1 means that no difference was found."""
        slack = 1e-9 * max(1.0, abs(value))
        return self.low - slack <= value <= self.high + slack


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians."""

    value: float
    interval: Interval | None
    """Its 95 % interval over repeats; None where either median is of one repeat, and of a median over itself."""
    is_single: bool = False
    """Whether it has none because a median is of one repeat: whether it is a difference is not known."""
    trusted: bool = True
    """Whether both medians are of valid rows."""

    @property
    def is_noise(self) -> bool:
        """Whether the interval holds 1, and no difference was found."""
        return self.interval is not None and self.interval.holds(1.0)

    @property
    def least_difference(self) -> float | None:
        """The smallest difference, as a share, that the comparison finds; None without an interval of positive ends.

        It is half of the interval's width, on the scale of the logarithm.
        """
        if self.interval is None or self.interval.low <= 0:
            return None
        return math.sqrt(self.interval.high / self.interval.low) - 1


def widen(interval: Interval, above: float, below: float = 0.0) -> Interval:
    """Return the interval of a ratio, of values above 0, whose sides may be off by these shares whatever is repeated.

    A sensor that is wrong is as wrong in every repeat, so this comes after the interval over repeats. Without `below`
    it is that of a number.
    """
    most = interval.high * (1 + above) / (1 - below) if below < 1 else math.inf
    return Interval(interval.low * max(0.0, 1 - above) / (1 + below), most)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error."""

    value: float
    error: float
    """On the scale of the logarithm where `log` is true."""
    freedom: float
    """Degrees of freedom; 0 where there is one repeat and no error is known."""
    log: bool
    turns: Mapping[int, float] = field(default_factory=dict)
    """Logarithm of the cell's mean by repeat, of one loader in one setting, workload and regime; of a ratio their
    difference. Empty of more, and where `log` is false."""

    def bounds(self, comparisons: int = 1) -> tuple[float, float]:
        """Return the ends of the 95 % interval, each wide enough for so many comparisons (Bonferroni)."""
        if not self.error:
            return self.value, self.value
        half = student_quantile(1 - _MISSED / 2 / comparisons, self.freedom) * self.error
        if not self.log:
            return self.value - half, self.value + half
        return self.value * math.exp(-min(half, 700)), self.value * math.exp(min(half, 700))

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval; None with one repeat."""
        return Interval(*self.bounds()) if self.freedom else None


Cells: TypeAlias = Mapping[int, Sequence[float]] | Sequence[Sequence[float]]
"""Values by cell: by the cell's repeat, or without it."""


def find_typical(groups: Iterable[Cells]) -> float | None:
    """Return how far the cells of these groups usually lie apart, as a variance of the logarithm.

    None of fewer than 8 groups with repeats. The variances of groups are taken for draws around a common one, so that
    a group's over the common one has the distribution F (Smyth, Linear Models and Empirical Bayes Methods, 2004,
    section 3). It is the most likely one of a grid.
    """
    found = []
    for group in groups:
        cells = [np.asarray(cell, np.float64) for cell in (group.values() if isinstance(group, Mapping) else group)]
        if len(cells) > 1 and min(float(cell.min()) for cell in cells) > 0:
            means = np.array([np.log(cell).mean() for cell in cells])
            found.append((float(means.var(ddof=1)), len(cells) - 1))
    if len(found) < _LEAST_GROUPS:
        return None
    variances, own = (np.array(values) for values in zip(*found, strict=True))
    variances = variances.clip(min=_LEAST_DEVIATION**2)
    common = float(np.median(variances)) * np.geomspace(0.05, 20, 49)
    likelihoods = np.array([_likelihoods(variances, own, common, freedom) for freedom in _FREEDOMS])
    return float(common[likelihoods.max(axis=0).argmax()])


def _likelihoods(variances: _Floats, own: _Floats, common: _Floats, freedom: float) -> _Floats:
    """Return the logarithm of the likelihood of each common variance, but for a constant.

    A variance over the common one has F of `own` and `freedom` degrees.
    """
    scaled = np.outer(own * variances, 1 / common)
    beta = sum(math.lgamma(one / 2) + math.lgamma(freedom / 2) - math.lgamma((one + freedom) / 2) for one in own)
    each = own[:, None] / 2 * np.log(scaled / (scaled + freedom)) + freedom / 2 * np.log(freedom / (scaled + freedom))
    likelihoods: _Floats = each.sum(axis=0) - beta
    return likelihoods


def estimate(groups: Iterable[Cells], *, log: bool = True, typical: float | None = None) -> Estimate:
    """Return the median of values by group and cell, with its standard error.

    A group is one loader in one setting, workload and regime. With `log` the error is that of the logarithm, unless a
    value is not above 0; `typical` is then how far the cells of the run's groups usually lie apart.
    """
    every_group = list(groups)
    cells = [
        [np.asarray(cell, np.float64) for cell in (group.values() if isinstance(group, Mapping) else group)]
        for group in every_group
    ]
    every = np.concatenate([cell for group in cells for cell in group])
    log = log and float(every.min()) > 0
    middle = float(np.median(every))
    if min(map(len, cells)) < 2:
        return Estimate(middle, 0.0, 0.0, log)
    freedom = float(sum(len(group) - 1 for group in cells))
    scaled = [[np.log(cell) for cell in group] for group in cells] if log else cells
    typical = typical if log else None
    error = float(_resample_medians(scaled, freedom, typical).std()) if np.ptp(every) else 0.0
    turns: Mapping[int, float] = {}
    if log and len(cells) == 1 and isinstance(every_group[0], Mapping):
        turns = {repeat: float(cell.mean()) for repeat, cell in zip(every_group[0], scaled[0], strict=True)}
    return Estimate(middle, error, freedom + (_OF_TYPICAL if typical else 0.0), log, turns)


def _resample_medians(groups: Sequence[Sequence[_Floats]], freedom: float, typical: float | None) -> _Floats:
    """Return the medians of resamples, each with as many cells of a group as there were.

    The epochs of a resampled cell keep how they lie around its mean. The cells' means are normal draws with the
    deviation of all (parametric bootstrap, Efron and Tibshirani, An Introduction to the Bootstrap, section 6.5): the
    median of a few values that are drawn again and again is most often the same one.
    """
    means = [np.array([cell.mean() for cell in cells]) for cells in groups]
    squares = sum(float(((mean - mean.mean()) ** 2).sum()) for mean in means)
    if typical is not None:
        squares, freedom = squares + _OF_TYPICAL * typical, freedom + _OF_TYPICAL
    deviation = math.sqrt(squares / freedom)
    random = np.random.default_rng(_SEED)
    drawn = []
    for cells, mean in zip(groups, means, strict=True):
        longest, shape = max(map(len, cells)), (_RESAMPLES, len(cells))
        around = np.full((len(cells), longest), np.nan)
        for place, cell in enumerate(cells):
            around[place, : len(cell)] = cell - mean[place]
        luck = mean.mean() + deviation * random.standard_normal((*shape, 1))
        drawn.append((luck + around[random.integers(0, len(cells), shape)]).reshape(_RESAMPLES, -1))
    values = np.concatenate(drawn, axis=1)
    medians: _Floats = (np.nanmedian if np.isnan(values).any() else np.median)(values, axis=1)
    return medians


def divide(above: Estimate, below: Estimate) -> Estimate:
    """Return the ratio of two estimates, the lower one not 0.

    Where both have the same repeats, at least MIN_PAIRS of them, it is the geometric mean of the repeats' ratios, with
    the error of Student's t for pairs. Else it is the ratio of the medians, with Welch's degrees of freedom.
    """
    if len(above.turns) >= MIN_PAIRS and above.turns.keys() == below.turns.keys():
        pairs = {repeat: mean - below.turns[repeat] for repeat, mean in above.turns.items()}
        error = stdev(pairs.values()) / math.sqrt(len(pairs))
        return Estimate(math.exp(fmean(pairs.values())), error, len(pairs) - 1.0, log=True, turns=pairs)
    ratio, log = above.value / below.value, above.log and below.log
    errors = [above.error, below.error]
    if not log:
        relative = [one.error / (1 if one.log else abs(one.value) or 1) for one in (above, below)]
        first = above.error / abs(below.value) if not above.log else abs(ratio) * relative[0]
        errors = [first, abs(ratio) * relative[1]]
    error = math.hypot(*errors)
    freedom = min(above.freedom, below.freedom)
    if freedom and error:
        shares = ((part / error) ** 4 / one.freedom for part, one in zip(errors, (above, below), strict=True))
        # Errors of few repeats are uncertain: Welch alone calls 8 % of equal loaders different, of 8 and 2 repeats.
        freedom = min(1 / sum(shares), 2 * min(above.freedom, below.freedom))
    return Estimate(ratio, error, freedom, log)


def compare_cells(above: Cells, below: Cells, typical: float | None = None) -> Ratio | None:
    """Return the ratio of values by cell; None when either is unknown or the lower one is 0."""
    if not above or not below:
        return None
    denominator = estimate([below], typical=typical)
    if not denominator.value:
        return None
    ratio = divide(estimate([above], typical=typical), denominator)
    return Ratio(ratio.value, ratio.interval)


def combine(how: str, parts: Mapping[Any, Estimate], number: Callable[[Mapping[Any, float]], float]) -> Interval | None:
    """Return the interval of the number that `number` makes of several; None where a part has one repeat.

    The least of several is above a bound if each of them is, so the ends of its interval are the least ends of theirs,
    the upper end widened for the number of parts; the greatest is its mirror image. (greatest - least) / least is the
    greatest ratio of any two, less 1; growth is the ratio of the part with the greatest key to that with the least. The
    mean and the knee are those of draws from every part's distribution.
    """
    if not all(part.freedom for part in parts.values()):
        return None
    match how:
        case "least":
            every = parts.values()
            return Interval(min(one.bounds()[0] for one in every), min(one.bounds(len(parts))[1] for one in every))
        case "greatest":
            return Interval(*_greatest(list(parts.values())))
        case "spread":
            low, high = _greatest([divide(first, second) for first, second in permutations(parts.values(), 2)])
            return Interval(max(low - 1, 0.0), max(high - 1, 0.0))
        case "growth":
            return divide(parts[max(parts)], parts[min(parts)]).interval
    drawn = {key: _draw(part, place) for place, (key, part) in enumerate(parts.items())}
    numbers = [number({key: float(values[place]) for key, values in drawn.items()}) for place in range(_DRAWS)]
    low, high = np.quantile(numbers, [_MISSED / 2, 1 - _MISSED / 2])
    return Interval(float(low), float(high))


def _greatest(parts: Sequence[Estimate]) -> tuple[float, float]:
    return max(part.bounds(len(parts))[0] for part in parts), max(part.bounds()[1] for part in parts)


def _draw(part: Estimate, place: int) -> _Floats:
    errors = part.error * np.random.default_rng([_SEED, place]).standard_t(part.freedom, _DRAWS)
    drawn: _Floats = part.value * np.exp(np.clip(errors, -700, 700)) if part.log else part.value + errors
    return drawn


@lru_cache(maxsize=1024)
def student_quantile(share: float, freedom: float) -> float:
    """Return a quantile of Student's t with `freedom` degrees of freedom, at least 1 and not necessarily whole."""
    freedom = min(freedom, _MOST_FREEDOM)
    angles, mass = _student(freedom)
    return math.sqrt(freedom) * math.tan(float(np.interp(share, mass, angles)))


def student_tail(value: float, freedom: float) -> float:
    """Return the chance that Student's t with `freedom` degrees of freedom, at least 1, exceeds a value above 0."""
    freedom = min(freedom, _MOST_FREEDOM)
    angles, mass = _student(freedom)
    return max(0.0, 1 - float(np.interp(math.atan(value / math.sqrt(freedom)), angles, mass)))


@lru_cache(maxsize=64)
def _student(freedom: float) -> tuple[_Floats, _Floats]:
    """Return the share of Student's t below √f tan θ, by θ.

    The density is proportional to cos^(f-1) θ, which is integrated by the trapezoidal rule.
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, 20_001)
    density = np.cos(angles).clip(min=0) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return angles, mass / mass[-1]


def fit_drift(cells: Sequence[tuple[float, ...]], span_s: float) -> Ratio | None:
    """Return by which factor values above 0, each with its time, s, grow over `span_s`; None of fewer than three.

    It is that of a line through their logarithms (least squares).
    """
    times, values = np.array(cells, np.float64).reshape(-1, 2).T
    if len(times) < 3 or not np.ptp(times) or values.min() <= 0:
        return None
    around, logs = times - times.mean(), np.log(values)
    weight = float((around**2).sum())
    slope = float((around * logs).sum()) / weight
    left, freedom = logs - logs.mean() - slope * around, len(times) - 2
    half = student_quantile(1 - _MISSED / 2, freedom) * math.sqrt(float((left**2).sum()) / freedom / weight)
    low, value, high = (math.exp(span_s * one) for one in (slope - half, slope, slope + half))
    return Ratio(value, Interval(low, high))


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two arms over the seeds that both have."""

    pairs: int
    first_mean: float
    first_std: float
    """Deviation of the sample, with n - 1."""
    difference: float
    """Mean of second − first."""
    half_width: float
    """Of the difference's 95 % interval."""

    @property
    def within_noise(self) -> bool:
        """Whether the interval of the difference holds 0."""
        return abs(self.difference) <= self.half_width


def compare_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """Return the difference of two arms by seed; None where fewer than two seeds are in both."""
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return None
    before = [first[seed] for seed in seeds]
    differences = [second[seed] - first[seed] for seed in seeds]
    half_width = student_quantile(0.975, len(seeds) - 1) * stdev(differences) / math.sqrt(len(seeds))
    return Paired(len(seeds), fmean(before), stdev(before), fmean(differences), half_width)
