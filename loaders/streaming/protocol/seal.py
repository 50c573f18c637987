"""Seals on requests over an open data channel: who has no session key makes none, and none is good twice.

A seal is the session, the connection's own random name, a counter that only grows on that connection, and a keyed
BLAKE2b over all three and the request (RFC 7693). The daemon derives a session's key from its secret key and the
session's name, so it stores none and honours them after a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections import OrderedDict

from loaders.streaming.protocol.messages import SESSION_BYTES, SESSION_KEY_BYTES, Buffer

__all__ = ["Sealer", "Seals", "password"]

_HEAD = struct.Struct(f"<{SESSION_BYTES}s8sQ")
_MAC_BYTES = 16
_REMEMBERED = 4096
"""Connections whose counter is remembered; the one that was silent longest is forgotten first."""


class Sealer:
    """Seals one connection's requests."""

    def __init__(self, session: bytes, key: bytes) -> None:
        self._session, self._key = session, key
        self._connection = os.urandom(8)
        self._counter = 0

    def seal(self, request: Buffer) -> bytes:
        """Return the seal of a request that is sent now."""
        self._counter += 1
        head = _HEAD.pack(self._session, self._connection, self._counter)
        return head + _mac(self._key, head, request)


class Seals:
    """The daemon's side: makes sessions, and knows good seals."""

    def __init__(self, secret: bytes) -> None:
        """Derive every session's key from `secret`."""
        self._master = hashlib.blake2b(secret, person=b"streaming seals", digest_size=32).digest()
        self._counters: OrderedDict[bytes, int] = OrderedDict()

    def session(self) -> tuple[bytes, bytes]:
        """Return the name and key of a new session."""
        name = os.urandom(SESSION_BYTES)
        return name, self._key(name)

    def lets_in(self, name: bytes, said: bytes) -> bool:
        """Return whether a connection's handshake named a session, in hex, and its password; any thread may ask."""
        try:
            session = bytes.fromhex(name.decode("ascii"))
        except ValueError:
            return False
        return len(session) == SESSION_BYTES and hmac.compare_digest(password(self._key(session)), said)

    def good(self, request: Buffer, seal: Buffer) -> bool:
        """Return whether a seal is of one of our sessions, on this request, and new."""
        if len(seal) != _HEAD.size + _MAC_BYTES:
            return False
        head, mac = bytes(seal[: _HEAD.size]), bytes(seal[_HEAD.size :])
        session, _, counter = _HEAD.unpack(head)
        if not hmac.compare_digest(_mac(self._key(session), head, request), mac):
            return False
        connection = head[: SESSION_BYTES + 8]
        if counter <= self._counters.get(connection, 0):
            return False
        self._counters[connection] = counter
        self._counters.move_to_end(connection)
        if len(self._counters) > _REMEMBERED:
            self._counters.popitem(last=False)
        return True

    def _key(self, session: bytes) -> bytes:
        return hashlib.blake2b(
            session, key=self._master, person=b"streaming key", digest_size=SESSION_KEY_BYTES
        ).digest()


def password(key: bytes) -> bytes:
    """Return what a session's connections say in their handshake; the key cannot be found from it."""
    return hashlib.blake2b(key=key, person=b"streaming word", digest_size=16).hexdigest().encode()


def _mac(key: bytes, head: bytes, request: Buffer) -> bytes:
    mac = hashlib.blake2b(head, key=key, person=b"streaming req", digest_size=_MAC_BYTES)
    mac.update(request)
    return mac.digest()
