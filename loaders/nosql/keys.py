"""The keys of a server and its clients: a certificate for either side, and the password of the clients' role."""

from __future__ import annotations

import os
import secrets
import ssl
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseKeys:
    """One side's key with its certificate, the server's certificate, and the password."""

    own: Path
    server: Path
    password: str

    def context(self) -> ssl.SSLContext:
        """Return the context of a client, which speaks to no server but the one with the known certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificate itself is known, so it need not name the host.
        context.check_hostname = False
        context.load_verify_locations(self.server)
        context.load_cert_chain(self.own)
        return context


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Make new keys in `folder`/daemon and `folder`/client and return the two folders.

    A host needs one of them only. Folders can be entered, and files read, by their owner alone. Raises
    LoaderConfigError when there are keys already, the folder cannot be written, or openssl is missing or fails.
    """
    daemon, client = folder / "daemon", folder / "client"
    password = secrets.token_urlsafe(32)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in (daemon, client):
            half.mkdir(mode=0o700)
            _write(half / PASSWORD, password)
        server = _make_pair(daemon / DAEMON_KEY)
        _write(daemon / TRUSTED, _make_pair(client / CLIENT_KEY) + server)
        for half in (daemon, client):
            _write(half / DAEMON_CERTIFICATE, server)
    except FileExistsError as error:
        raise LoaderConfigError(f"{error.filename} is there already: remove it, or name another folder") from error
    except OSError as error:
        raise LoaderConfigError(f"keys cannot be written to {error.filename}: {error.strerror}") from error
    return daemon, client


def load_daemon_keys(folder: Path | str) -> DatabaseKeys:
    """Read a server's half; raises LoaderConfigError naming the file that is missing or open to others."""
    return _load(Path(folder), DAEMON_KEY)


def load_client_keys(folder: Path | str) -> DatabaseKeys:
    """Read a client's half; raises LoaderConfigError naming the file that is missing or open to others."""
    return _load(Path(folder), CLIENT_KEY)


def _make_pair(path: Path) -> str:
    """Write a new private key with its certificate to a file; return the certificate."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
    argv += ["-keyout", "-", "-subj", f"/CN=joulefeed-{path.stem}", "-days", str(_DAYS)]
    try:
        made = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LoaderConfigError("openssl, which makes keys, is not on PATH: install the package openssl") from error
    certificate = made.stdout[made.stdout.find("-----BEGIN CERTIFICATE") :]
    if made.returncode or "PRIVATE KEY" not in made.stdout or "CERTIFICATE" not in certificate:
        raise LoaderConfigError(f"openssl made no key: {' '.join(made.stderr.split()[-20:])}")
    _write(path, made.stdout)
    return certificate


def _load(folder: Path, own: str) -> DatabaseKeys:
    for name in (own, DAEMON_CERTIFICATE, PASSWORD):
        path = folder / name
        try:
            mode = path.stat().st_mode
            password = path.read_text().strip()
        except OSError as error:
            raise LoaderConfigError(
                f"{path} cannot be read ({error.strerror}): expected the {Path(own).stem}'s half of what "
                "`python -m loaders.nosql keygen` makes"
            ) from error
        if name != DAEMON_CERTIFICATE and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LoaderConfigError(f"{path} is open to others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
    return DatabaseKeys(folder / own, folder / DAEMON_CERTIFICATE, password)


def _write(path: Path, text: str) -> None:
    # Never open to others, not even until a chmod.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text.rstrip("\n") + "\n")
