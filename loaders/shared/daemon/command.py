"""The command of a loader's daemon: serve, and where there is one, prepare and keygen."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from joulefeed.server import ServerProcess
from joulefeed.signals import Interrupted
from joulefeed.version import PrintVersion
from loaders.errors import LoaderError
from loaders.shared.daemon.flags import add_flags, read_flags, run_command

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Prepare: TypeAlias = Callable[[Path, Path, Callable[[int, int], None]], None]
"""Makes of a shard folder what the daemon serves; calls a function with the numbers of samples done and of all."""
_READY: Final = "A JSON line on standard output says when it is ready and at which endpoint."


@dataclass(frozen=True, slots=True)
class Served:
    """What a daemon serves once it is ready."""

    line: Mapping[str, object]
    """What the line says by which it is ready; `endpoint` is where."""
    server: ServerProcess
    """The server program behind it, whose end ends the daemon."""


@dataclass(frozen=True, slots=True)
class DaemonCommand:
    """`python -m MODULE`: its commands and their texts; the package MODULE has what they run."""

    module: str
    about: str
    options: type[BaseModel]
    """Of `serve`."""
    serve: Callable[[Any], int | None]
    """Serves with the options that it gets; returns the exit status, where that is not 0."""
    serves: str
    """What it does until a signal, as a phrase."""
    log: str = ""
    """Where the daemon's messages go, as a sentence."""
    prepares: str = ""
    """What MODULE.prepare makes of a shard folder, as a phrase; without one there is no such command."""
    keys: str = ""
    """What MODULE.make_keys makes, as a sentence; without one there is no such command."""
    add_more: Callable[[Commands], None] | None = None
    """Adds commands of the module's own; each sets `run`, which gets the parsed arguments."""

    def main(self, argv: list[str] | None = None) -> int:
        """Run a command and return its exit status: 0 or its own when done, 2 after an error."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.about, allow_abbrev=False)
        parser.add_argument("--version", action=PrintVersion)
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        serve = _add(commands, "serve", f"{self.serves} until SIGTERM or Ctrl-C", f"{_READY} {self.log}", self._serve)
        add_flags(serve, self.options)
        if self.prepares:
            prepare = _add(
                commands,
                "prepare",
                f"{self.prepares}, for `serve --root`",
                "On a terminal a bar shows how far it is, elsewhere JSON lines on standard output do.",
                self._prepare,
            )
            prepare.add_argument(
                *("--shards", "--root"),
                type=Path,
                required=True,
                metavar="DIR",
                help="shard folder, as `python -m loaders.streaming convert` makes it",
            )
            prepare.add_argument(
                "--out", type=Path, required=True, metavar="DIR", help="new or empty folder, or one that is half made"
            )
        if self.keys:
            about = f"DIR/daemon for `serve --keys` and DIR/client for the loader's keys= argument. {self.keys}"
            keygen = _add(commands, "keygen", "make keys for a daemon and its clients", about, self._keygen)
            keygen.add_argument("folder", type=Path, metavar="DIR", help="folder to make them in")
        if self.add_more is not None:
            self.add_more(commands)
        arguments = parser.parse_args(argv)
        return run_command(lambda: arguments.run(arguments))

    def _serve(self, arguments: argparse.Namespace) -> int | None:
        options = read_flags(self.options, vars(arguments))
        try:
            return self.serve(options)
        except Interrupted:
            return 0

    def _prepare(self, arguments: argparse.Namespace) -> None:
        prepare: Prepare = importlib.import_module(self.module).prepare
        if not sys.stdout.isatty():
            prepare(arguments.shards, arguments.out, lambda *done: _say({"progress": done}))
            return
        with progress_bar("samples prepared") as bar:
            prepare(arguments.shards, arguments.out, bar)

    def _keygen(self, arguments: argparse.Namespace) -> None:
        daemon, client = importlib.import_module(self.module).make_keys(arguments.folder)
        sys.stdout.write(
            f"{daemon}  for serve --keys, on the storage node\n{client}  for keys=, on the compute nodes\n"
        )


def _add(
    commands: Commands, name: str, does: str, more: str, run: Callable[[argparse.Namespace], int | None]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, allow_abbrev=False, help=does, description=f"{does[:1].upper()}{does[1:]}. {more}".strip()
    )
    parser.set_defaults(run=run)
    return parser


def say_ready(line: Mapping[str, object]) -> None:
    """Write the line by which a daemon says that it is ready."""
    _say({"ready": True, "pid": os.getpid(), **line})


def serve_until_end(serving: AbstractContextManager[Served], *, until_eof: bool) -> None:
    """Write the line of a daemon once it is ready; return at the end of standard input, where that is asked for.

    A signal ends it by an exception. Raises LoaderError where the server has ended.
    """
    with serving as served:
        say_ready(served.line)
        if (failure := served.server.wait(sys.stdin.fileno() if until_eof else None)) is not None:
            raise LoaderError(failure)


@contextmanager
def log_at_end(server: ServerProcess) -> Iterator[None]:
    """Write a server's last messages to standard error when the block ends."""
    try:
        yield
    finally:
        sys.stderr.write(server.log_lines() + "\n")


def wait_for_eof(*, until_eof: bool) -> None:
    """Wait for the end of standard input, where that is asked for; a signal ends it by an exception."""
    watched = [sys.stdin.fileno()] if until_eof else []
    while not (select.select(watched, [], [])[0] and not os.read(watched[0], 2**12)):
        pass


def _say(line: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar from the first call of what it yields, with (done, in all), to the end of the block."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    task = bars.add_task(text, total=None)

    def show(done: int, total: int) -> None:
        bars.start()  # not before there is something to show: an error that comes first stands alone
        bars.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bars.live.is_started:
            bars.stop()
