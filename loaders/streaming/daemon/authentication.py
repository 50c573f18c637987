"""Who may connect to a daemon: with keys only their client (CURVE, by pyzmq's authenticator), without keys everyone."""

from __future__ import annotations

import ipaddress

import zmq
from zmq.auth.thread import ThreadAuthenticator

from loaders.errors import LoaderConfigError
from loaders.streaming.keys import KeyPair

_DOMAIN = "streaming"


class Authenticator:
    """Answers ZeroMQ's questions about peers in a thread; `stop` ends it.

    Raises LoaderConfigError for a host other than a loopback address without keys and without `no_auth`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, keys: KeyPair | None, no_auth: bool) -> None:
        if keys is None and not no_auth and not is_loopback(host):
            raise LoaderConfigError(
                f"{host} can be reached from other hosts, and without keys anyone there could read the shards: "
                "give --keys DIR (made by `python -m loaders.streaming keygen`), or --no-auth to allow it"
            )
        self._keys = keys
        self._thread: ThreadAuthenticator | None = None
        self.rejected = 0
        """Connections that were refused because of their key."""
        if keys is not None:
            self._thread = ThreadAuthenticator(context)
            self._thread.start()
            self._thread.configure_curve_callback(_DOMAIN, self)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a public key, in Z85, is the client's; pyzmq calls it."""
        is_known = self._keys is not None and key == self._keys.peer
        self.rejected += not is_known
        return is_known

    def secure(self, server: zmq.Socket[bytes]) -> None:
        """Make a server's socket accept only CURVE connections, if there are keys; before it is bound."""
        if self._keys is not None:
            self._keys.secure_daemon(server, _DOMAIN)

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.stop()


def is_loopback(host: str) -> bool:
    """Return whether a numeric address can be reached from this host alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
