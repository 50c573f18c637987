"""The keys by which daemon and client know one another: CURVE key pairs in two folders, one for either side."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from loaders.errors import LoaderConfigError

_DAEMON, _CLIENT = "daemon", "client"


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """One side's own key and the other side's public one, in Z85 as ZeroMQ wants them."""

    public: bytes
    secret: bytes
    peer: bytes

    def secure_client(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket a CURVE client that speaks to no daemon but the one whose key this is."""
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.peer)

    def secure_daemon(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Make a socket a CURVE server; whom it lets in is decided by the ZAP handler of its context."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, domain)
        # Without a handler nobody is let in.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Make new keys in `folder`/daemon and `folder`/client and return the two folders.

    A host needs one of them only. Folders can be entered, and files read, by their owner alone. Raises
    LoaderConfigError when there are keys already or the folder cannot be written.
    """
    sides = {name: zmq.curve_keypair() for name in (_DAEMON, _CLIENT)}
    made = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, peer in ((_DAEMON, _CLIENT), (_CLIENT, _DAEMON)):
            half = folder / name
            half.mkdir(mode=0o700)
            _write(half / f"{name}.secret", sides[name][1])
            _write(half / f"{peer}.public", sides[peer][0])
            made.append(half)
    except FileExistsError as error:
        raise LoaderConfigError(f"{error.filename} is there already: remove it, or name another folder") from error
    except OSError as error:
        raise LoaderConfigError(f"keys cannot be written to {error.filename}: {error.strerror}") from error
    return made[0], made[1]


def load_daemon_keys(folder: Path | str) -> KeyPair:
    """Read a daemon's half; raises LoaderConfigError naming the file that is missing, open to others or no key."""
    return _load(Path(folder), _DAEMON, _CLIENT)


def load_client_keys(folder: Path | str) -> KeyPair:
    """Read a client's half; raises LoaderConfigError naming the file that is missing, open to others or no key."""
    return _load(Path(folder), _CLIENT, _DAEMON)


def _load(folder: Path, own: str, peer: str) -> KeyPair:
    secret = _read(folder / f"{own}.secret", private=True)
    public = _check(folder / f"{own}.secret", lambda: zmq.curve_public(secret))
    return KeyPair(public, secret, _read(folder / f"{peer}.public", private=False))


def _write(path: Path, key: bytes) -> None:
    # Never open to others, not even until a chmod.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(key + b"\n")


def _read(path: Path, *, private: bool) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(100).strip()
    except OSError as error:
        raise LoaderConfigError(
            f"{path} cannot be read ({error.strerror}): expected the {path.stem}'s half of what "
            "`python -m loaders.streaming keygen` makes"
            if private
            else f"{path} cannot be read ({error.strerror}): copy it from where the keys were made"
        ) from error
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LoaderConfigError(f"{path} is open to others (mode {stat.S_IMODE(mode):o}): chmod 600 {path}")
    if len(key) != 40 or len(_check(path, lambda: z85.decode(key))) != 32:
        raise LoaderConfigError(f"{path} holds no key")
    return key


def _check(path: Path, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (ValueError, KeyError, zmq.ZMQError) as error:
        raise LoaderConfigError(f"{path} holds no key") from error
