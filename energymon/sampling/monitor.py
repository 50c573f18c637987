"""Samples every sensor together at every tick of the grid."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from energymon.clock.monotonic import NS, Clock, dither_ns, next_tick, tick_at
from energymon.sampling.edges import EdgeListener
from energymon.sampling.records import ClockStep, Gap, Record, Sampled, sampled
from energymon.sampling.slow import NICE, SlowSensor, SlowSensors
from energymon.sensors.base import Raw, Sensor
from energymon.ticker.ticker import Reason, Ticker, ticker_library
from joulefeed.scheduling import raise_priority

_QUICK_NS: Final = 100_000
"""A sensor that answers within this is read by the timekeeper itself: waking another thread takes as long."""
_REHEARSED_NS: Final = 50_000
"""Sensors that all answer within this are read twice at a tick. The second answers are kept: they take a fifth of the
time, because the first reading has filled the CPU's caches."""
_COLD_NS: Final = 50_000_000
"""Ticks that are closer together than this find the caches filled."""
_TRIALS: Final = 5
_SLOW_NS: Final = 10_000_000
"""A sensor of the timekeeper's that takes this long, twice in a row, gets a thread of its own."""
_STUCK_NS: Final = NS
"""A sensor that the timekeeper has been waiting on for this long is left to a thread of its own."""
_LAST_TICK_NS: Final = NS
"""A stopping monitor waits this long at most for one more tick, which closes windows that ended before it."""
_JOIN_S: Final = 2.0
_COMPILED_NS: Final = NS
"""Ticks that are further apart than this cost nothing, compiled or not."""
_MEND_NS: Final = NS
"""How long Python takes the ticks after one that failed: it opens again what has to be."""


class Monitor:
    """Samples every sensor at every tick t_k = k·interval (UTC) and passes the answers to `sink`.

    At each tick the timekeeper thread releases the threads of slow sensors and reads the quick sensors itself. A slow
    sensor that has not answered since an earlier tick misses the tick. A sensor that hangs in the timekeeper keeps that
    thread, and another thread keeps the time.

    Where all sensors are quick and the host has a compiler, compiled code takes the ticks until one is unusual; `drain`
    passes on what it has taken.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        interval_ns: int,
        sink: Callable[[Iterable[Record]], None],
        on_failure: Callable[[BaseException], None],
        clock: Clock | None = None,
        after_ns: int = 0,
        linger_ns: int = 0,
        edges: EdgeListener | None = None,
        follow_ups_ns: Sequence[int] = (),
        dither_ns: int = 0,
        on_edge: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what to sample and where the records go; nothing starts yet.

        Args:
            sensors: Sensors that are read at every tick.
            interval_ns: Time between two ticks, ns.
            sink: Called with records, from the sampling threads, and must be quick.
            on_failure: Called with the exception that ends a thread.
            clock: The clock of the ticks; default a new one.
            after_ns: No tick is taken up to this instant, UTC ns; default 0.
            linger_ns: Ticks go on for so long after `stop`, for values that come late, ns; default 0.
            edges: Listener for programs that want a reading at once; default none.
            follow_ups_ns: How long after such a reading the sensors are read again, ns; default never.
            dither_ns: Ticks are taken up to so much late, at random, ns; default 0. Sampled power needs it: a load that
                repeats in step with the ticks is then seen at all of its moments.
            on_edge: Called after each reading for such a program; default nothing.
        """
        self._sensors, self._interval_ns, self._clock = sensors, interval_ns, clock or Clock()
        self._sink, self._on_failure, self._on_edge = sink, on_failure, on_edge
        self._after_ns, self._linger_ns, self._dither_ns = after_ns, linger_ns, dither_ns
        self._edges, self._follow_ups_ns = edges, follow_ups_ns
        self._follow: list[int] = []
        """When the sensors are read again for programs, monotonic ns, in order."""
        self._answers = False
        self._last_ns = 0
        self.priority = "normal"
        """What scheduling the samplers were granted; known once a tick was taken."""
        library = ticker_library() if interval_ns <= _COMPILED_NS else "ticks this far apart cost next to nothing"
        self._library = None if isinstance(library, str) else library
        self.sampler = f"Python: {library}" if isinstance(library, str) else "compiled, Python where a tick is unusual"
        """Who takes the ticks, and why."""
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._keeping: threading.Thread
        self._quick: list[int] = []
        self._slow: list[int] = []
        """Quick sensors that were slow at the last tick."""
        self._readings = 1
        self._slow_sensors = SlowSensors(sensors, self._deliver, sink, self._spawn)
        # Guards what follows, and the order of what comes out of the ticker; held for a few statements only.
        self._lock = threading.Lock()
        self._keeper = 0
        """Number of the thread that keeps the time."""
        self._stuck: dict[int, SlowSensor] = {}
        """The sensor that hangs, by the number of the timekeeper that it keeps."""
        self._due_ns = 0
        self._hand: tuple[int, int] | None = None
        """The sensor that the timekeeper reads, and since when, monotonic ns."""
        self._ticker: Ticker | None = None
        self._kept: tuple[object, Ticker] | None = None
        self._context: tuple[list[int], int, int] = ([], 0, 0)
        """Of the ticker: its sensors, in order, the clock's offset, and the wall clock's offset to it, ns."""
        self._has_ticked = False
        self._mended_ns = 0

    def start(self) -> None:
        """Time each sensor, place it, and start the threads."""
        took_ns = [_answers_in_ns(sensor) for sensor in self._sensors]
        self._quick = [index for index, ns in enumerate(took_ns) if ns <= _QUICK_NS]
        for index, ns in enumerate(took_ns):
            if ns > _QUICK_NS:
                self._slow_sensors.add(index)
        rehearses = self._interval_ns >= _COLD_NS and sum(took_ns[i] for i in self._quick) <= _REHEARSED_NS
        self._readings = 2 if rehearses else 1
        self._due_ns = next_tick(max(self._clock.now_ns(), self._after_ns), self._interval_ns)
        self._keeping = self._spawn(self._keep_time, self._keeper)

    def stop(self) -> None:
        """Take one last tick and end the threads, after `start`; one that hangs in a driver dies with the process."""
        self._last_ns = self._clock.now_ns() + self._linger_ns
        with self._lock:
            self._stopping = True
            if self._ticker is not None:
                self._ticker.stop(self._last_ns)
        if self._edges is not None:
            self._edges.wake()
        patience_s = (_LAST_TICK_NS + self._linger_ns) / NS + _JOIN_S
        deadline = time.monotonic() + patience_s
        self._keeping.join(patience_s)
        self._slow_sensors.end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.drain()
        self._slow_sensors.hand_over()

    def drain(self) -> None:
        """Hand to `sink` what compiled code has taken since the last call."""
        with self._lock:
            if self._ticker is not None:
                self._pass_on(self._ticker)

    def attend(self) -> None:
        """Have Python take the next tick: a sensor's answer made no sense, and its file may have to be opened again."""
        with self._lock:
            if self._ticker is not None:
                self._ticker.leave()

    def unstick(self) -> None:
        """Replace a timekeeper that a sensor has kept for a second; call this every few seconds."""
        with self._lock:
            index = self._stuck_at()
            if index is None:
                return
            self._hand = None
            self._ticker = None
            self._quick = [i for i in self._quick if i != index]
            # The thread that hangs becomes this sensor's own when it comes back.
            self._stuck[self._keeper] = self._slow_sensors.adopt(index)
            self._keeper += 1
        self._keeping = self._spawn(self._keep_time, self._keeper)

    def _stuck_at(self) -> int | None:
        """Return the sensor that has kept the timekeeper for too long; compiled code then returns."""
        if self._stopping:
            return None
        too_long_ns = time.monotonic_ns() - _STUCK_NS
        if self._ticker is None:
            return self._hand[0] if self._hand is not None and self._hand[1] <= too_long_ns else None
        hand = self._ticker.in_progress()
        if hand is None or hand[1] > too_long_ns:
            return None
        self._ticker.abandon()
        if self._ticker.in_progress() != hand:
            # It has answered this very moment.
            self._ticker.resume()
            return None
        self._pass_on(self._ticker)
        self._due_ns = self._ticker.next_ns + self._interval_ns
        return self._context[0][hand[0]]

    def _spawn(self, body: Callable[..., None], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                body(*args)
            except BaseException as error:  # noqa: BLE001 - passed to the owner, who ends the process
                self._on_failure(error)

        thread = threading.Thread(target=guarded, name=f"sampler-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _keep_time(self, keeper: int) -> None:
        """Take the ticks until the monitor stops or another thread keeps the time."""
        self.priority = raise_priority(NICE)
        clock, interval_ns = self._clock, self._interval_ns
        awaited = self._due_ns
        looked_ns = clock.now_ns()
        stopping = False
        while not stopping:
            if self._may_run(awaited):
                reason, awaited = self._let_run(keeper, awaited)
                if reason is Reason.STOPPED or keeper != self._keeper:
                    return
            due = awaited + dither_ns(awaited, self._dither_ns)
            if not self._wait(keeper, due):
                return
            stopping = self._stopping and awaited >= self._last_ns
            # What compiled code took was looked at, up to the tick before this one.
            looked_ns = max(looked_ns, awaited - interval_ns)
            step_ns = clock.step_ns()
            now = clock.now_ns()
            if step_ns:
                self._sink((ClockStep(now, step_ns, clock.wall_ns, now - looked_ns),))
            looked_ns = now
            if now < due and not self._stopping:
                continue
            tick = awaited
            if now - due >= interval_ns:
                tick = max(tick_at(now, interval_ns), awaited)
                self._sink((Gap(awaited, tick - interval_ns, interval_ns),))
            awaited = self._due_ns = tick + interval_ns
            if not self._take(keeper, tick):
                return
            # The first tick is Python's: somebody waits for it.
            self._has_ticked = True

    def _may_run(self, due_ns: int) -> bool:
        """Whether this is for compiled code: no thread waits for the tick, and nothing has failed lately."""
        quiet = self._has_ticked and not self._slow_sensors and not self._stopping and not self._follow
        return quiet and self._library is not None and due_ns >= self._mended_ns

    def _wait(self, keeper: int, awaited_ns: int) -> bool:
        """Wait until the tick `awaited_ns`; read the sensors meanwhile when a program asks at an edge, and after it.

        Returns False when this thread is to end: another keeps the time, or the monitor stops before the tick.
        """
        edges = self._edges
        while True:
            now_ns = time.monotonic_ns()
            wait_ns = awaited_ns - self._clock.offset_ns - now_ns
            if self._stopping and wait_ns > _LAST_TICK_NS:
                return False
            if wait_ns <= 0:
                return True
            is_asked = edges is not None and edges.serve()
            if is_asked or (self._follow and self._follow[0] <= now_ns):
                follow_ups = {now_ns + after_ns for after_ns in self._follow_ups_ns} if is_asked else set[int]()
                self._follow = sorted(follow_ups | {due_ns for due_ns in self._follow if due_ns > now_ns})
                self._answers |= is_asked
                begin_ns = self._clock.now_ns()
                keeps = self._take(keeper, begin_ns, between=awaited_ns - begin_ns)
                self._on_edge()
                if not keeps:
                    return False
            elif self._may_run(awaited_ns):
                return True
            else:
                due_ns = min(wait_ns, self._follow[0] - now_ns) if self._follow else wait_ns
                if edges is None:
                    # A stop is seen at the end of each sleep.
                    time.sleep(max(0, min(due_ns, _LAST_TICK_NS)) / NS)
                else:
                    select.select([edges], [], [], max(0.0, due_ns / NS))

    def _let_run(self, keeper: int, due_ns: int) -> tuple[Reason | None, int]:
        """Let compiled code take the ticks from `due_ns` on until one is out of the ordinary.

        Returns why it came back, None if it did not run, and the tick that is due. A ticker that was abandoned leaves
        its sensor to this thread.
        """
        groups = [self._sensors[index].operations() for index in self._quick]
        able = [group for group in groups if group]
        if len(able) < len(groups) or self._library is None:
            self._mended_ns = due_ns + _MEND_NS
            return None, due_ns
        offset_ns, wall_ns = self._clock.offset_ns, self._clock.wall_ns
        context, key = (self._quick, offset_ns, wall_ns), (able, offset_ns, wall_ns)
        # The ticker of the last time goes on if it still serves: a ring is large where ticks are close.
        if self._kept is None or self._kept[0] != key:
            ticker = Ticker(
                self._library,
                able,
                interval_ns=self._interval_ns,
                offset_ns=offset_ns,
                wall_ns=wall_ns,
                readings=self._readings,
                slow_ns=_SLOW_NS,
                dither_ns=self._dither_ns,
                wake_fd=-1 if self._edges is None else self._edges.fileno(),
            )
            self._kept = key, ticker
        ticker = self._kept[1]
        with self._lock:
            if self._stopping:
                return None, due_ns
            self._ticker, self._context = ticker, context
        reason, next_ns = ticker.run(due_ns)
        with self._lock:
            replaced = keeper != self._keeper
            if not replaced:
                self._pass_on(ticker)
                self._ticker = None
                self._due_ns = next_ns
        if replaced:
            self._left_with(keeper, sampled(ticker.left_with(), *context, whole=False))
        elif reason is Reason.FAILED:
            self._mended_ns = next_ns + _MEND_NS
        if reason is not Reason.SLOW:
            self._slow = []
        return reason, next_ns

    def _pass_on(self, ticker: Ticker) -> None:
        context = self._context
        self._sink(sampled(taken, *context, whole=True) for taken in ticker.take())

    def _take(self, keeper: int, tick_ns: int, between: int | None = None) -> bool:
        """Sample all that is due at this tick; return False when another thread keeps the time by now.

        `between` is how long after this, ns, the next tick is, where this is a reading between ticks: sensors that
        would not be back by then are left out.
        """
        wall_ns = self._clock.wall_ns
        due = Sampled(tick_ns, self._clock.offset_ns + wall_ns, (), True, between is not None, 0, 0, -wall_ns)
        opened = self._slow_sensors.release(due, between) if self._slow_sensors else None
        sensors, monotonic_ns = self._sensors, time.monotonic_ns
        for _ in range(self._readings if between is None else 1):
            samples: list[tuple[int, Raw]] = []
            slow: list[int] = []
            start_ns = end_ns = monotonic_ns()
            for index in self._quick:
                self._hand = (index, end_ns)
                samples.append((index, sensors[index].sample()))
                before_ns, end_ns = end_ns, monotonic_ns()
                if end_ns - before_ns > _SLOW_NS:
                    slow.append(index)
                if keeper != self._keeper:
                    break
            if keeper != self._keeper:
                break
        with self._lock:
            replaced = keeper != self._keeper
            if not replaced:
                self._hand = None
        brought = due._replace(samples=samples, start_ns=start_ns, end_ns=end_ns)
        if replaced:
            self._left_with(keeper, brought._replace(whole=False, late=opened is not None))
            return False
        if slow or self._slow:
            for index in set(slow) & set(self._slow):
                self._quick = [i for i in self._quick if i != index]
                self._slow_sensors.add(index)
            self._slow = slow
        if opened is not None:
            self._slow_sensors.meet(opened, brought)
        else:
            self._deliver(brought)
        return True

    def _left_with(self, keeper: int, brought: Sampled) -> None:
        """Deliver what a sensor that hung has brought at last, and sample that sensor on this thread from now on."""
        self._sink((brought,))
        self._slow_sensors.serve(self._stuck[keeper])

    def _deliver(self, record: Sampled) -> None:
        """Pass on a tick, and answer those who have asked: every sensor that could be was read."""
        self._sink((record,))
        if self._answers and self._edges is not None:
            self._answers = False
            self._edges.answer()


def _answers_in_ns(sensor: Sensor) -> int:
    """Return the median time of a few samples, ns; they are thrown away."""
    took: list[int] = []
    for _ in range(_TRIALS):
        before_ns = time.monotonic_ns()
        sensor.sample()
        took.append(time.monotonic_ns() - before_ns)
    return sorted(took)[_TRIALS // 2]
