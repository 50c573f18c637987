"""Predicts the epoch of a choice from short probes, and says what limits it; pure.

An epoch takes the time to its first batches, the steps that are left when its last ones are there, and between them for
each batch the longest of four: the step, the processors' work, the link's bytes, and the reader-seconds of its files
over the files that are read at once. Each is measured in a probe.
Other numbers of readers follow from it; what several loaders do to each other's caches and locks does not, so the
contenders are probed themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, variance
from typing import Final, Literal, NamedTuple, TypeAlias

from harness.advise.question import Choice, Objective
from harness.diagnose.diagnosis import Stage

Limit: TypeAlias = Literal["step", "processors", "link", "readers"]

SCATTER: Final = 0.02
"""Relative deviation of one probe from the next, where too few were repeated to know; 1.8 % over the kept cases."""
PROBED: Final = 0.02
"""Relative error of an epoch that is predicted from `FULL` batches of the same choice, beside the probes' scatter."""
PROBED_STEP: Final = 0.005
"""The same of as many batches or more that are bound by the step, where files are local."""
FULL: Final = 16
"""Batches of a long probe. Half as many are four times as far off: their start and their end weigh more."""
DERIVED: Final = 0.12
"""The same from probes with another number of readers, or of fewer batches than there are readers."""
_Z90: Final = 1.645
_AT_STEP: Final = 1.1
"""A choice is bound by the step where a batch takes less than so many steps."""
_ROUNDS: Final = 2
"""From so many rounds of a probe on, its first one is separated."""
_BUSY: Final = 0.85
"""Processors, and a link, are the limit from this share on."""
MOST_READERS: Final = 48


@dataclass(frozen=True, slots=True)
class Place:
    """Where training runs."""

    cores: int
    rate_bytes: float | None
    """Of the link, bytes/s; None for local files."""
    rtt_s: float
    batches: int
    """Of an epoch of the whole dataset."""
    step_s: float = 0.0
    """A batch of the bound, which loads nothing."""


@dataclass(frozen=True, slots=True)
class ProbedEpoch:
    """One settled epoch of a choice over some of the samples."""

    batches: int
    epoch_s: float
    first_s: float
    """Until the first batch."""
    cpu_s: float
    """Processor time of the loader and the step."""
    rx_bytes: float
    """Received over the link."""
    rss_bytes: float
    joules: float | None
    is_estimate: bool
    ahead: float = 0.0
    """How many of its batches were ready before it began, as a loader makes them that prefetches across epochs."""


class Bounds(NamedTuple):
    """What a batch takes at least, s, by what it needs."""

    step: float
    processors: float
    link: float
    readers: float


class Prediction(NamedTuple):
    """A number with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice, what its probes showed, and what follows for an epoch of the whole dataset."""

    choice: Choice
    probes: tuple[ProbedEpoch, ...]
    readers: int | None
    """Files that it reads at once; None where that has no meaning."""
    whole_batches: bool = False
    """Whether each reader makes whole batches, so that batches come in rounds of as many as there are readers."""
    is_derived: bool = False
    """Whether the probes are of another number of readers."""
    factor: float = 1.0
    """Of the time of a batch over that of the probes."""
    probed_readers: int | None = None
    """Files that the probes read at once, where it is derived."""
    probed_at: Place | None = None
    """Where the probes ran, if it is elsewhere."""

    def batch_s(self, place: Place) -> float:
        """Return the time of a batch, s."""
        return self.factor * self._probed_s(place)[0]

    def _probed_s(self, place: Place) -> tuple[float, float, bool]:
        """Return the time of a batch of the probes and what an epoch took beside, s; whether batches came in rounds."""
        place = self.probed_at or place
        first_s, batches = (median(getattr(one, name) for one in self.probes) for name in ("first_s", "batches"))
        epoch_s = median(one.epoch_s for one in self.probes)
        readers = self.probed_readers or self.readers or 1
        if self.is_short:
            # Readers that have nothing to read leave more to the others: what all share is taken to be the limit.
            last_s = place.step_s * (_last_steps(batches, readers) if self.whole_batches else 2)
            return max(place.step_s, (epoch_s - last_s) / batches), last_s, False
        is_apart = not self.whole_batches or batches >= _ROUNDS * readers
        if is_apart and epoch_s - first_s <= _AT_STEP * place.step_s * batches:
            return (epoch_s - first_s) / batches, first_s, False
        there = max(1.0, median(one.ahead for one in self.probes))
        if self.whole_batches:
            if place.rtt_s and not self._is_busy(epoch_s / batches, place):
                batch_s = (epoch_s - place.step_s * _last_steps(batches, readers)) / _in_rounds(batches, readers)
                if batch_s > _AT_STEP * place.step_s:
                    return batch_s, 0.0, True
                return place.step_s, first_s, False  # a round's steps take longer than the next one's files
            if not is_apart:
                return epoch_s / batches, 0.0, False
            there = readers  # by the time of the first batch the others of its round are all but made
        # When the last of them arrive, the step of the one before is on.
        last_s = (there + 1) * place.step_s
        batch_s = max(place.step_s, (epoch_s - first_s - last_s) / (batches - there))
        return batch_s, first_s + last_s - there * batch_s, False

    def _is_at_step(self, batch_s: float, place: Place) -> bool:
        return self.factor * batch_s <= _AT_STEP * place.step_s

    def _is_busy(self, batch_s: float, place: Place) -> bool:
        """Whether processors, the link or the step are used up, so that readers wait for none of their files."""
        cpu_s, link_s = self._used_s(place)
        return self._is_at_step(batch_s, place) or max(cpu_s, link_s) >= _BUSY * batch_s

    def _used_s(self, place: Place) -> tuple[float, float]:
        """Return what a batch takes of all processors, and of the link, s."""
        cpu_s = median(one.cpu_s / one.batches for one in self.probes) / place.cores
        link_s = median(one.rx_bytes / one.batches for one in self.probes)
        return cpu_s, link_s / place.rate_bytes if place.rate_bytes else 0.0

    @property
    def is_short(self) -> bool:
        """Whether a probe had fewer batches than readers; one amid an epoch (no `first_s`) is never short."""
        probe = self.probes[0]
        return probe.first_s > 0 and (self.probed_readers or self.readers or 0) > probe.batches

    @property
    def shortness(self) -> float:
        """By how much a prediction is farther off than one from `FULL` batches, or from batches amid an epoch."""
        probe = self.probes[0]
        return max(1.0, FULL / probe.batches) ** 2 if probe.first_s else 1.0

    @property
    def rss_bytes(self) -> float:
        """Memory of the cell's processes, bytes."""
        return max(one.rss_bytes for one in self.probes)

    @property
    def watts(self) -> float | None:
        """Mean power while it loads and trains; None where it is unknown."""
        powers = [None if one.joules is None else one.joules / one.epoch_s for one in self.probes]
        return None if None in powers else fmean(power for power in powers if power is not None)

    def bounds(self, place: Place) -> Bounds:
        """Return what bounds a batch; the readers' is all of its time where nothing else is used up."""
        batch_s = self.batch_s(place)
        is_busy = self._is_busy(batch_s / self.factor, place)
        return Bounds(place.step_s, *self._used_s(place), 0.0 if is_busy else batch_s)

    def limit(self, place: Place) -> Limit:
        """Return what limits it."""
        found = self.bounds(place)
        if found.readers:
            return "readers"
        if self._is_at_step(self._probed_s(place)[0], place):
            return "step"
        return "link" if found.link > found.processors else "processors"

    def epoch_s(self, place: Place, scatter: float = SCATTER) -> Prediction:
        """Return the seconds of an epoch; its interval is that of one epoch, which scatters as the probes do."""
        batch_s, value, is_in_rounds = self._probed_s(place)
        if self.readers and is_in_rounds and not self._is_at_step(batch_s, place):
            value += self.batch_s(place) * _in_rounds(place.batches, self.readers)
            value += place.step_s * _last_steps(place.batches, self.readers)
        else:
            value += self.batch_s(place) * place.batches
        factor = math.exp(_Z90 * math.hypot(self.error(place, scatter), scatter))
        return Prediction(value, value / factor, value * factor)

    def error(self, place: Place, scatter: float) -> float:
        """Return the relative error of a prediction of the usual epoch."""
        if self.is_derived or self.is_short:
            return DERIVED
        own = PROBED_STEP if self.is_steady(place) else PROBED * self.shortness
        return math.hypot(own, scatter / math.sqrt(len(self.probes)))

    def is_steady(self, place: Place) -> bool:
        """Whether probes of local files were long enough to show that nothing but the step is the limit."""
        return self.shortness == 1 and not place.rtt_s and self.limit(place) == "step"

    def joules(self, place: Place, scatter: float = SCATTER) -> Prediction | None:
        """Return the joules of an epoch; None where nothing shows power."""
        watts = self.watts
        return None if watts is None else Prediction(*(watts * seconds for seconds in self.epoch_s(place, scatter)))

    def score(self, place: Place, objective: Objective, scatter: float = SCATTER) -> Prediction:
        """Return the number to be made small; infinite where it is unknown."""
        seconds, joules = self.epoch_s(place, scatter), self.joules(place, scatter)
        if objective == "time":
            return seconds
        if joules is None:
            return Prediction(math.inf, math.inf, math.inf)
        if objective == "joules":
            return joules
        return Prediction(*(s * j for s, j in zip(seconds, joules, strict=True)))

    def with_readers(self, choice: Choice, readers: int, place: Place) -> Candidate:
        """Return what follows for another number of files that are read at once."""
        assert self.readers is not None
        bound, factor = self.bounds(place), self.factor
        if bound.readers:
            least = max(bound.step, bound.processors, bound.link)
            factor *= max(least, bound.readers * self.readers / readers) / self.batch_s(place)
        probed = self.probed_readers or self.readers
        return replace(self, choice=choice, readers=readers, probed_readers=probed, is_derived=True, factor=factor)

    def elsewhere(self, here: Place, there: Place) -> Candidate:
        """Return what follows for another distance, other processors or another step."""
        own = self.bounds(here)
        # Beside the step, each reader keeps one processor busy at most.
        lanes = there.cores if self.readers is None else min(there.cores, self.readers + 1)
        moved = Bounds(
            there.step_s,
            own.processors * here.cores / lanes,
            own.link,
            own.readers * (there.rtt_s / here.rtt_s if here.rtt_s else 1.0),
        )
        return replace(self, is_derived=True, factor=self.factor * max(moved) / max(*own, 1e-12), probed_at=here)


def _in_rounds(batches: float, readers: int) -> float:
    """Return how many batches of whole rounds, in each of which every reader makes one, take as long as these.

    A last round that is not whole takes as long as a whole one where each reader waits for its own files, and its share
    where all share what serves them. The mean of both is taken.
    """
    rounds, left = divmod(batches, readers)
    return readers * rounds + (readers + left) / 2 * bool(left)


def _last_steps(batches: float, readers: int) -> float:
    """Return how many steps are left when the batches of the last round arrive, with the one that is on."""
    return (batches % readers or readers) + 1


def suggest_readers(candidate: Candidate, place: Place) -> list[int]:
    """Return other numbers of files to read at once that may be better, the most promising first."""
    now = candidate.readers
    if now is None:
        return []
    bound = candidate.bounds(place)
    match candidate.limit(place):
        case "readers":
            least = max(bound.step, bound.processors, bound.link, candidate.batch_s(place) / MOST_READERS)
            enough = min(MOST_READERS, math.ceil(now * bound.readers / least))
            wanted = [enough, round(math.sqrt(now * enough))]
        # Readers that share processors get in each other's way, and in that of the step.
        case _ if place.rtt_s:
            wanted = [now // 2]
        case "step":
            wanted = [min(place.cores, now // 2)]
        case _:
            wanted = [place.cores, place.cores + 1]
    return [number for number in dict.fromkeys(wanted) if number not in (0, now)]


def rank(
    candidates: Iterable[Candidate], place: Place, objective: Objective, max_rss_gb: float | None
) -> list[Candidate]:
    """Return the candidates that fit into memory, the best first."""
    fitting = [one for one in candidates if max_rss_gb is None or one.rss_bytes <= 1e9 * max_rss_gb]
    return sorted(fitting, key=lambda one: one.score(place, objective).value)


def what_would_change(
    ranked: Sequence[Candidate], place: Place, objective: Objective
) -> Mapping[str, tuple[Candidate, Prediction]]:
    """Return which choice would be the first one, with its epoch, if the place were another one."""
    others = {
        "twice the processors": replace(place, cores=2 * place.cores),
        "a step of half the time": replace(place, step_s=place.step_s / 2),
    }
    if place.rtt_s:
        others["twice the distance"] = replace(place, rtt_s=2 * place.rtt_s)
    found = {}
    for name, there in others.items():
        best = min((one.elsewhere(place, there) for one in ranked), key=lambda one: one.score(there, objective).value)
        found[name] = best, best.epoch_s(there)
    return found


Decision: TypeAlias = Literal["change", "leave it", "cannot say"]


@dataclass(kw_only=True)
class Findings:
    """The answers to a question so far."""

    subject: str
    """The model, and where its data is."""
    in_use: Choice
    """The choice to be compared with."""
    place: Place
    objective: Objective
    command: str
    paste: Callable[[Choice], Sequence[str]]
    """Returns the lines by which a choice is taken."""
    max_rss_gb: float | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Loaders that cannot be used here, and why."""
    candidates: dict[str, Candidate] = field(default_factory=dict)
    """Those that were probed, by key."""
    spoiled: dict[str, str] = field(default_factory=dict)
    """Why a choice has no valid probe, by key."""
    notes: list[str] = field(default_factory=list)
    """What disturbed probes."""
    stages: tuple[Stage, ...] = ()
    """Of preparing a batch; empty where they are unknown."""
    seconds: float = 0.0
    """What the probes took, set-up included."""

    @property
    def scatter(self) -> float:
        """Relative deviation of one probe from the next, of those that were repeated and the usual one."""
        logs = [[math.log(probe.epoch_s) for probe in one.probes] for one in self.candidates.values()]
        repeated = [each for each in logs if len(each) > 1]
        squares = sum(len(each) * variance(each) for each in repeated)
        # Few repeats say little: the usual scatter counts as four of them.
        return math.sqrt((squares + 4 * SCATTER**2) / (sum(map(len, repeated)) + 4))

    @property
    def ranked(self) -> list[Candidate]:
        """The probed choices, the best first."""
        return rank(self.candidates.values(), self.place, self.objective, self.max_rss_gb)

    @property
    def incumbent(self) -> Candidate | None:
        """The choice in use; None without a valid probe of it."""
        return self.candidates.get(self.in_use.key)

    def take(
        self, choice: Choice, readers: int | None, probes: Sequence[ProbedEpoch], *, whole_batches: bool = False
    ) -> None:
        """Add valid probes of a choice that reads so many files at once; those of more batches replace others."""
        before = self.candidates.get(choice.key)
        every = (*(before.probes if before else ()), *probes)
        most = max(one.batches for one in every)
        # Those amid an epoch end by time.
        every = tuple(one for one in every if one.batches == most or not one.first_s)
        self.candidates[choice.key] = Candidate(choice, every, readers, whole_batches)
        self.spoiled.pop(choice.key, None)

    def derive(self, readers_key: Callable[[Choice], str]) -> list[Choice]:
        """Return choices with other numbers of readers that may be better than all that were probed, best first.

        `readers_key` returns the argument by which a choice takes its number of readers.
        """
        if not self.ranked:
            return []
        best = self.ranked[0].score(self.place, self.objective).high
        derived = [
            one.with_readers(one.choice.but(**{readers_key(one.choice): number}), number, self.place)
            for one in self.candidates.values()
            for number in suggest_readers(one, self.place)
        ]
        promising = [one for one in derived if one.score(self.place, self.objective).low < best]
        ordered = rank(promising, self.place, self.objective, None)
        # Two candidates of a loader may lead to the same choice.
        return [one for one in dict.fromkeys(found.choice for found in ordered) if one.key not in self.candidates]

    def contenders(self, count: int) -> list[Choice]:
        """Return the best choices and the one in use, without those that two long probes show to be worse."""
        best, *others = self.ranked[:count]
        beside = [*filter(None, [self.incumbent]), *others]
        left = [one for one in beside if one.shortness > 1 or len(one.probes) < 2 or not self._is_behind(one, best)]
        return list(dict.fromkeys(one.choice for one in (best, *left)))

    def decide(self) -> Decision:
        """Return whether the best choice is better than the one in use, beyond what probes and model may be off by.

        Nothing is said where the probes of all others were spoiled.
        """
        ranked, incumbent = self.ranked, self.incumbent
        if incumbent is None or not self.place.step_s or not ranked:
            return "cannot say"
        best = ranked[0]
        if best.choice == incumbent.choice:
            return "cannot say" if self.spoiled and len(self.candidates) == 1 else "leave it"
        if incumbent not in ranked:  # it does not fit into the memory
            return "change"
        return "change" if self._is_behind(incumbent, best) else "leave it"

    def _is_behind(self, one: Candidate, best: Candidate) -> bool:
        """Whether one is worse by more than probes and model may be off by."""
        before, after = (each.score(self.place, self.objective).value for each in (one, best))
        error = math.hypot(*(each.error(self.place, self.scatter) for each in (one, best)))
        return math.log(before / after) > _Z90 * error
