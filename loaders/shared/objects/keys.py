"""The access key of an object store, from a file as AWS's tools have it or from the environment."""

from __future__ import annotations

import configparser
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loaders.errors import LoaderConfigError

CREDENTIALS = "credentials"
"""Name of the file in a folder of keys. It is a shared credentials file of AWS's tools with the profile `default`."""
_SECTION = "default"
_EXAMPLE = "a section [default] with aws_access_key_id and aws_secret_access_key"


@dataclass(frozen=True, slots=True, repr=False)
class ObjectKeys:
    """An access key and its secret."""

    access_key: str
    secret_key: str
    session_token: str | None = None


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Make one new access key, write it to `folder`/daemon and `folder`/client, and return the two folders.

    Only their owner can enter the folders and read the files. Raises LoaderConfigError when there are keys already or
    the folder cannot be written.
    """
    keys = ObjectKeys(secrets.token_hex(10), secrets.token_urlsafe(30))
    halves = folder / "daemon", folder / "client"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in halves:
            half.mkdir(mode=0o700)
            write_keys(half / CREDENTIALS, keys)
    except FileExistsError as error:
        raise LoaderConfigError(f"{error.filename} is there already: remove it, or name another folder") from error
    except OSError as error:
        raise LoaderConfigError(f"keys cannot be written to {error.filename}: {error.strerror}") from error
    return halves


def write_keys(path: Path, keys: ObjectKeys) -> None:
    """Write a new credentials file that only its owner can read; raises OSError where it exists or cannot be made."""
    lines = [f"[{_SECTION}]", f"aws_access_key_id = {keys.access_key}", f"aws_secret_access_key = {keys.secret_key}"]
    if keys.session_token is not None:
        lines.append(f"aws_session_token = {keys.session_token}")
    # The mode is set as the file is made: a later chmod would leave a moment in which others can read it.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")


def load_keys(path: Path | str | None, environment: Mapping[str, str] = os.environ) -> ObjectKeys:
    """Read the keys from a credentials file or a folder that has one; without a path, from the environment.

    The environment's names are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. Raises LoaderConfigError
    naming the file or the variable that is missing, open to others or malformed.
    """
    if path is not None:
        path = Path(path)
        return _load(path / CREDENTIALS if path.is_dir() else path)
    access_key, secret_key = (environment.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    if not access_key or not secret_key:
        missing = "AWS_SECRET_ACCESS_KEY" if access_key else "AWS_ACCESS_KEY_ID"
        raise LoaderConfigError(f"{missing} is not set: set it, or name a file that has {_EXAMPLE}")
    return ObjectKeys(access_key, secret_key, environment.get("AWS_SESSION_TOKEN") or None)


def _load(path: Path) -> ObjectKeys:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            parser.read_file(file)
    except OSError as error:
        raise LoaderConfigError(f"{path} cannot be read ({error.strerror}): expected {_EXAMPLE}") from error
    except (configparser.Error, UnicodeDecodeError) as error:
        # The parser's message quotes the line, which may be a secret.
        raise LoaderConfigError(f"{path} is no credentials file: expected {_EXAMPLE}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LoaderConfigError(f"{path} is open to others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
    section = parser[_SECTION] if parser.has_section(_SECTION) else {}
    access_key, secret_key = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
    if not access_key or not secret_key:
        raise LoaderConfigError(f"{path} has no keys: expected {_EXAMPLE}")
    return ObjectKeys(access_key, secret_key, section.get("aws_session_token") or None)
