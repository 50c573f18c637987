"""The access key of an object store, from a file as AWS's tools have it or from the environment."""

from __future__ import annotations

import configparser
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulefeed.keys import make_halves, read_private
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

    Raises LoaderConfigError when there are keys already or the folder cannot be written.
    """
    access_key, secret_key = secrets.token_hex(10), secrets.token_urlsafe(30)
    text = f"[{_SECTION}]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n"
    half = {CREDENTIALS: text.encode()}
    return make_halves(folder, half, half, LoaderConfigError)


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
    content = read_private(path, _EXAMPLE, LoaderConfigError)
    try:
        parser.read_string(content.decode())
    except (configparser.Error, UnicodeDecodeError):
        # The parser's message quotes the line, which may be a secret.
        raise LoaderConfigError(f"{path} is no credentials file: expected {_EXAMPLE}") from None
    section = parser[_SECTION] if parser.has_section(_SECTION) else {}
    access_key, secret_key = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
    if not access_key or not secret_key:
        raise LoaderConfigError(f"{path} has no keys: expected {_EXAMPLE}")
    return ObjectKeys(access_key, secret_key, section.get("aws_session_token") or None)
