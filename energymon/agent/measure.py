"""Joules of each call of a function: `@energymon.measure`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

from energymon.agent.window import Window
from energymon.errors import EnergyError, OptionError

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def measure(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...


@overload
def measure(
    *, report: Callable[[Window], object] = ..., **options: Any
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def measure(
    function: Callable[..., Any] | None = None, /, *, report: Callable[[Window], object] | None = None, **options: Any
) -> Any:
    """Measure each call of a function or a coroutine, which returns what it did without; decorated calls may nest.

    A call that raises has no figure. Windows are direct unless an agent or a store is given. Where nothing can be
    measured, a call raises NoSensorError before the function runs. A call returns after its report, which waits for
    the figures: a call around it has that time and its joules too.

    Args:
        function: The function; OptionError is raised for one that yields, since its body runs after the call.
        report: Takes each call's window; a function is waited for where this looks at figures, a coroutine always.
            Default prints them on stderr.
        options: Those of Window; default `direct=True`.
    """
    if function is None:
        return functools.partial(measure, report=report, **options)
    options.setdefault("direct", not options.keys() & {"agent", "store", "node"})
    name, tell = getattr(function, "__qualname__", "call"), report or print_window
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(f"{name} is a generator function, whose body runs after the call; measure what uses it")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def measured_coroutine(*args: Any, **given: Any) -> Any:
            async with Window(name, **options) as window:
                result = await cast(Any, function)(*args, **given)
            tell(await window.settled())
            return result

        return measured_coroutine

    @functools.wraps(function)
    def measured(*args: Any, **given: Any) -> Any:
        with Window(name, **options) as window:
            result = function(*args, **given)
        tell(window)
        return result

    return measured


def print_window(window: Window) -> None:
    """Print a window's joules on stderr, in a line, or why there are none."""
    try:
        each = ", ".join(f"{name} {_j(joules)}" for name, joules in window.by_domain.items())
        error = "an estimate" if window.estimated else f"± {_j(window.error_j)}, sensors ± {_j(window.accuracy_j)}"
        figures = f"{_j(window.joules)} ({error}; {each})"
    except EnergyError as error_of_window:
        figures = str(error_of_window)
    print(f"{window.name}: {window.duration_s:.6f} s, {figures}", file=sys.stderr)


def _j(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f} J"
