"""A daemon's listening socket for ZeroMQ: how many connections it takes, their send buffers and congestion control."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path

from loaders.errors import LoaderConfigError, StreamError
from loaders.streaming.daemon.counters import log

_TUNED = Path("/proc/sys/net/ipv4/tcp_wmem")
_MAX_SEND_BUFFER = Path("/proc/sys/net/core/wmem_max")
_MAX_BUFFER_BYTES = 2**31
"""The kernel counts a buffer by an int."""


def choose_send_buffer(bandwidth_gbit: float | None, rtt_ms: float | None) -> int | None:
    """Return the send buffer in bytes for a link, None where TCP's own tuning does as well or better.

    A sender keeps unacknowledged bytes: the bandwidth-delay product, twice while TCP recovers a loss. A buffer
    that is set is no longer tuned, so one is set only where it is larger than what tuning may reach (tcp(7)).

    Raises LoaderConfigError for one number without the other, or one that is not more than 0.
    """
    if bandwidth_gbit is None and rtt_ms is None:
        return None
    if bandwidth_gbit is None or rtt_ms is None or not bandwidth_gbit > 0 or not rtt_ms > 0:
        raise LoaderConfigError("--bandwidth-gbit and --rtt-ms belong together, and are more than 0")
    product = 2 * bandwidth_gbit * 1e9 / 8 * rtt_ms * 1e-3
    if not product < _MAX_BUFFER_BYTES:
        raise LoaderConfigError(
            f"--bandwidth-gbit {bandwidth_gbit:g} and --rtt-ms {rtt_ms:g} ask for a send buffer of {product:g} bytes: "
            f"expected less than {_MAX_BUFFER_BYTES:g}"
        )
    wanted = int(product)
    tuned, allowed = int(_TUNED.read_text().split()[2]), int(_MAX_SEND_BUFFER.read_text())
    # The kernel doubles what it is asked for, for its own use (socket(7)); what tuning reaches is counted with it.
    reached = min(wanted, allowed)
    if 2 * reached <= tuned:
        if wanted > tuned:
            log(
                "send_buffer",
                wanted=wanted,
                allowed=allowed,
                tuned_to=tuned,
                advice=f"raise {_MAX_SEND_BUFFER} or {_TUNED}",
            )
        return None
    if reached < wanted:
        log("send_buffer", wanted=wanted, allowed=allowed, advice=f"raise {_MAX_SEND_BUFFER}")
    return reached


_BACKLOG = 128
"""Connections that may wait to be accepted."""
_MAX_CONNECTIONS = 4_096
"""Connections at a time, however many descriptors there are; each takes 40 kB of memory."""
_RECEIVE_BYTES = 128 * 2**10
"""Buffer for requests, which are small."""
_MIN_CONNECTIONS = 8
_ENDING_S = 2.0
"""How long a port is waited for that is in use."""
_OWN, _OWN_PER_THREAD = 32, 2
"""Descriptors that a daemon opens for itself: 18 with one of ZeroMQ's threads, and two for every further one."""
_UNLIMITED = 2**20
"""What a limit of descriptors without end is taken for."""
_KERNELS, _PREFERRED = "kernel", "bbr"
"""The option for the kernel's congestion control; the one that is chosen without the option."""
_AVAILABLE_CONGESTION = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_ALLOWED_CONGESTION = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


class ListeningSocket:
    """Listens at one address until it is closed; ZeroMQ accepts the connections through a descriptor of its own."""

    def __init__(self, host: str, port: int, *, send_buffer: int | None = None, congestion: str | None = None) -> None:
        """Listen on a numeric host and a port, any free one for 0.

        Connections inherit `send_buffer`, in bytes, and the congestion control; None leaves TCP's own tuning of the
        buffer. `congestion` None is bbr where clients are on other hosts and the kernel has it; "kernel" leaves the
        kernel's.

        Raises StreamError naming the address when it cannot be bound, LoaderConfigError for a congestion control that
        cannot be had.
        """
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            if send_buffer is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            if congestion is None and not is_loopback(host):
                with suppress(OSError):  # the kernel has none, or not for this user
                    self._set_congestion(_PREFERRED)
            elif congestion not in (None, _KERNELS):
                self._choose(congestion)
            self._bind(address)
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            raise StreamError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        except BaseException:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])

    @property
    def congestion(self) -> str:
        """The congestion control of its connections."""
        return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()

    def descriptor(self) -> int:
        """Return a new descriptor of the listening socket, which the caller closes."""
        return os.dup(self._socket.fileno())

    def close(self) -> None:
        """Stop to listen, once ZeroMQ has closed its descriptor too; may be called twice."""
        self._socket.close()

    def _bind(self, address: tuple[object, ...]) -> None:
        """Bind the socket; a port in use may belong to a daemon that was killed and has not ended yet."""
        deadline = time.monotonic() + _ENDING_S
        while True:
            try:
                return self._socket.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _set_congestion(self, name: str) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())

    def _choose(self, congestion: str) -> None:
        try:
            self._set_congestion(congestion)
        except OSError as error:
            advice = (
                f"this kernel has {_AVAILABLE_CONGESTION.read_text().strip()} (modprobe tcp_{congestion} may add it)"
            )
            if error.errno == errno.EPERM:
                advice = f"as root, add it to {_ALLOWED_CONGESTION}"
            raise LoaderConfigError(f"--congestion {congestion}: {error.strerror}; {advice}") from error


def is_loopback(host: str) -> bool:
    """Return whether a numeric address can be reached from this host alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def limit_connections(threads: int) -> int:
    """Raise this process' limit of descriptors as far as it may; return how many connections it leaves room for.

    Called before a daemon with so many of ZeroMQ's threads opens anything. Half of the descriptors that are left:
    connections that came while others were counted need some too.

    Raises StreamError when that is next to none.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # the limit stays what it was, and is read below
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    used = len(list(Path("/proc/self/fd").iterdir())) + _OWN + _OWN_PER_THREAD * threads
    if (limit - used) // 2 < _MIN_CONNECTIONS:
        needed = used + 2 * _MIN_CONNECTIONS
        raise StreamError(
            f"a limit of {limit} descriptors leaves none for connections: raise it to {needed} or more (ulimit -Hn)"
        )
    return min(_MAX_CONNECTIONS, (limit - used) // 2)
