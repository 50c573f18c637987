"""The keys of a server and its clients: a certificate for either side, and the password of the clients' role."""

from __future__ import annotations

import secrets
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from joulefeed.keys import CLIENT, DAEMON, make_halves, read_private
from loaders.errors import LoaderConfigError

USER: Final = "cassandra"
"""The role of the clients, the first one that a server makes; `make_keys` makes its password."""
DAEMON_KEY, CLIENT_KEY = "daemon.pem", "client.pem"
DAEMON_CERTIFICATE = "daemon.crt"
TRUSTED: Final = "trusted.crt"
"""File with the certificates of the clients: the client's own, and the daemon's, which sets the password."""
PASSWORD: Final = "password"  # noqa: S105 - the name of a file
_DAYS: Final = 30
"""Certificates are made for one run."""
_OPENSSL_S: Final = 60.0
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE"


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """Who a client is, and how it encrypts."""

    user: str
    password: str
    context: ssl.SSLContext


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Make new keys in `folder`/daemon and `folder`/client and return the two folders, of which a host needs one.

    Raises LoaderConfigError when there are keys already, the folder cannot be written, or openssl is missing or fails.
    """
    server, client = _make_pair(DAEMON), _make_pair(CLIENT)
    both = {PASSWORD: secrets.token_urlsafe(32).encode(), DAEMON_CERTIFICATE: _certificate(server)}
    return make_halves(
        folder,
        {**both, DAEMON_KEY: server, TRUSTED: _certificate(client) + _certificate(server)},
        {**both, CLIENT_KEY: client},
        LoaderConfigError,
    )


def load_daemon_keys(folder: Path | str) -> Login:
    """Read a server's half; raises LoaderConfigError naming the file that is missing or open to others."""
    return _load(Path(folder), DAEMON_KEY)


def load_client_keys(folder: Path | str) -> Login:
    """Read a client's half; raises LoaderConfigError naming the file that is missing or open to others."""
    return _load(Path(folder), CLIENT_KEY)


def _make_pair(name: str) -> bytes:
    """Return a new private key with its certificate."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
    argv += ["-keyout", "-", "-subj", f"/CN=joulefeed-{name}", "-days", str(_DAYS)]
    try:
        made = subprocess.run(argv, capture_output=True, check=False, timeout=_OPENSSL_S)
    except FileNotFoundError as error:
        raise LoaderConfigError("openssl, which makes keys, is not on PATH: install the package openssl") from error
    if made.returncode or b"PRIVATE KEY" not in made.stdout or _CERTIFICATE not in made.stdout:
        raise LoaderConfigError(f"openssl made no key: {' '.join(made.stderr.decode(errors='replace').split()[-20:])}")
    return made.stdout


def _certificate(pair: bytes) -> bytes:
    return pair[pair.index(_CERTIFICATE) :]


def _load(folder: Path, own: str) -> Login:
    expected = f"the {Path(own).stem}'s half of what `python -m loaders.nosql keygen` makes"
    for name in (own, DAEMON_CERTIFICATE):
        read_private(folder / name, expected, LoaderConfigError, is_secret=name == own)
    password = read_private(folder / PASSWORD, expected, LoaderConfigError).decode().strip()
    # It speaks to no server but the one with the known certificate, which therefore need not name the host.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / DAEMON_CERTIFICATE)
    context.load_cert_chain(folder / own)
    return Login(USER, password, context)
