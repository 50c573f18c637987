"""A dataset as the tables of a server: made once of its shards, and served by servers that do not write into it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loaders.errors import ShardError, StreamError
from loaders.nosql.ingest import ingest
from loaders.nosql.schema import FORM, DatabaseTable
from loaders.nosql.server.configuration import SERVER_FILES
from loaders.nosql.server.installation import DatabaseServerError
from loaders.nosql.server.process import CassandraServer
from loaders.records.shards.index import ShardSet, write_atomically
from loaders.shared.daemon.programs import link_file, served_folder

KEYSPACE: Final = "joulefeed"
NAME: Final = "samples"
_FORM_FILE: Final = "form.json"
_TABLES: Final = "data"
_SPARE_BYTES: Final = 2**27
"""Space for two segments of the commit log."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a folder of tables has."""

    form: str
    key: str
    """Of the shards that it was made of."""
    samples: int
    nbytes: int
    """Of the records."""


def prepare(shards: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Make the tables of a shard folder in an empty or half-made folder, with a server of their own on loopback.

    `progress` is called with the numbers of samples stored and of all. Raises ShardError for shards that cannot be read
    and for a folder of something else, DatabaseServerError, StreamError.
    """
    dataset = ShardSet.open(shards)
    _check_own(folder)
    with CassandraServer(folder) as server:
        _check_room(folder, dataset)
        try:
            ingest(shards, DatabaseTable(server.host, server.port, KEYSPACE, NAME), progress)
        except StreamError as error:
            # A disk that is full ends the server, which then is what does not answer.
            _check_room(folder, dataset)
            if (failure := server.failure()) is not None:
                raise DatabaseServerError(failure) from error
            raise
    with write_atomically(folder / _FORM_FILE) as file:
        file.write(json.dumps(asdict(Form(FORM, dataset.key, dataset.samples, dataset.nbytes))).encode())
    # The tables are whole without them; where some remain, because this process was killed, none is served.
    for path in [folder / name for name in SERVER_FILES]:
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _check_own(folder: Path) -> None:
    """Raise ShardError for a folder that has something, and neither tables nor a server's half of them."""
    try:
        found = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ShardError(f"{folder}: {error.strerror}: expected a folder for the tables") from error
    if found and found.isdisjoint({_FORM_FILE, SERVER_FILES[0]}):
        raise ShardError(f"{folder} has files that are not of tables, such as {min(found)}: name a new or empty folder")


def _check_room(folder: Path, dataset: ShardSet) -> None:
    """Raise ShardError where the folder has no room for the rest of a dataset."""
    stored = sum(path.stat().st_size for path in (folder / _TABLES).rglob("*-Data.db"))
    free, needed = shutil.disk_usage(folder).free, dataset.nbytes - stored + _SPARE_BYTES
    if free < needed:
        raise ShardError(
            f"{folder} has {free / 1e6:.0f} MB of free space, and the tables need {needed / 1e6:.0f} MB more: make "
            "room, or name a folder elsewhere; a preparation goes on where it ended"
        )


def open_form(folder: Path) -> Form:
    """Return what a folder has that `prepare` made; raises ShardError where it is none."""
    path = folder / _FORM_FILE
    try:
        found = Form(**json.loads(path.read_bytes()))
    except OSError as error:
        raise ShardError(
            f"{path}: {error.strerror}: expected a folder that `python -m loaders.nosql prepare` has made"
        ) from error
    except (ValueError, TypeError) as error:
        raise ShardError(f"{path}: {error}; prepare the folder again") from error
    if found.form != FORM:
        raise ShardError(f"{folder} has tables of the form {found.form}, expected {FORM}: prepare it again")
    return found


@contextmanager
def linked_tables(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside this one, or where temporary files lie, with its tables for one server.

    The files with the records, which no server changes, are links where the file system has them; the others are
    copies. It is removed at the end. Raises ShardError where there is no room.
    """
    with ExitStack() as held:
        try:
            copy = held.enter_context(served_folder(folder))
            shutil.copytree(folder / _TABLES, copy / _TABLES, copy_function=_link)
        except (OSError, shutil.Error) as error:
            raise ShardError(f"the tables of {folder} cannot be linked or copied to serve them: {error}") from error
        yield copy


def _link(source: str, target: str) -> str:
    return link_file(source, target) if source.endswith("-Data.db") else str(shutil.copyfile(source, target))
