"""The keys by which daemon and client know one another: CURVE key pairs in two folders, one for either side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from joulefeed.keys import CLIENT, DAEMON, make_halves, read_private
from loaders.errors import LoaderConfigError


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

    A host needs one of them only. Raises LoaderConfigError when there are keys already or the folder cannot be written.
    """
    (daemon, daemon_secret), (client, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    return make_halves(
        folder,
        {f"{DAEMON}.secret": daemon_secret + b"\n", f"{CLIENT}.public": client + b"\n"},
        {f"{CLIENT}.secret": client_secret + b"\n", f"{DAEMON}.public": daemon + b"\n"},
        LoaderConfigError,
    )


def load_daemon_keys(folder: Path | str) -> KeyPair:
    """Read a daemon's half; raises LoaderConfigError naming the file that is missing, open to others or no key."""
    return _load(Path(folder), DAEMON, CLIENT)


def load_client_keys(folder: Path | str) -> KeyPair:
    """Read a client's half; raises LoaderConfigError naming the file that is missing, open to others or no key."""
    return _load(Path(folder), CLIENT, DAEMON)


def _load(folder: Path, own: str, peer: str) -> KeyPair:
    secret = _read(folder / f"{own}.secret", is_secret=True)
    public = _check(folder / f"{own}.secret", lambda: zmq.curve_public(secret))
    return KeyPair(public, secret, _read(folder / f"{peer}.public", is_secret=False))


def _read(path: Path, *, is_secret: bool) -> bytes:
    half = f"the {path.stem}'s half of what `python -m loaders.streaming keygen` makes"
    key = read_private(
        path, half if is_secret else "it as where the keys were made", LoaderConfigError, is_secret=is_secret
    ).strip()
    if len(key) != 40 or len(_check(path, lambda: z85.decode(key))) != 32:
        raise LoaderConfigError(f"{path} holds no key")
    return key


def _check(path: Path, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (ValueError, KeyError, zmq.ZMQError) as error:
        raise LoaderConfigError(f"{path} holds no key") from error
