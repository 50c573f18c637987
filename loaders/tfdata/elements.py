"""The elements of a dataset of the service, taken by a thread, so that every wait for them has a limit."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

from joulefeed.closing import Closing
from loaders.errors import LoaderConfigError, StreamError
from loaders.shared.threads import Wakeup
from loaders.tfdata.tensorflow import Dataset, Element, Take, load_tensorflow

# The client's preface with an empty SETTINGS frame. A server sends a SETTINGS frame of its own first (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of grpc://HOST:PORT; raises LoaderConfigError for anything else."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "grpc" or parts.path or parts.query:
        raise LoaderConfigError(f"endpoint={endpoint!r}: expected grpc://HOST:PORT, such as grpc://10.77.0.1:5050")
    return host, port


def find_fault(address: tuple[str, int], timeout_s: float) -> str | None:
    """Return why no gRPC server answers at an address within `timeout_s`; None where one does."""
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(_PREFACE)
            header = connection.recv(_FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error.strerror or error)
    is_grpc = len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS
    return None if is_grpc else "what answers there is no gRPC server"


def is_refused(address: tuple[str, int]) -> bool:
    """Return whether a host says that nothing listens at an address."""
    try:
        with socket.create_connection(address, 1.0):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


_LOOK_S: Final = 1.0
"""Seconds of silence after which it is looked whether the servers are still there."""
_END_S: Final = 2.0
"""Seconds in which a cancelled call has to end; one that does not is left behind with its thread."""
_ANSWER_S: Final = 2.0
"""Seconds in which the dispatcher has to answer, before an epoch that was broken off is released there."""
_NODES: Final = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\]$")
"""What TensorFlow's messages begin and end with: nodes of the client's graph."""
_CAPACITY: Final = 1
"""Elements that wait here, besides those in TensorFlow's own buffer."""

Address = tuple[str, int]


class Elements(Closing):
    """Takes elements in a thread. tf.data's client retries without end where a server is gone; this one gives up."""

    def __init__(
        self,
        endpoint: str,
        servers: Sequence[Address],
        open_dataset: Callable[[], Dataset],
        timeout_s: float,
        advice: str,
    ) -> None:
        """Start to take the elements of the dataset that `open_dataset` returns.

        `servers` are those that it needs, the dispatcher first; `advice` is what to do after an error of the service.
        """
        self.endpoint, self._servers, self._timeout_s, self._advice = endpoint, servers, timeout_s, advice
        self._open_dataset = open_dataset
        self._ready: deque[Element] = deque()
        self._lock, self._has_news, self._has_room = threading.Lock(), Wakeup(), Wakeup()
        self._take: Take | None = None
        self._error: BaseException | None = None
        self._limit: threading.Timer | None = None
        self._is_over = self._is_whole = self._closed = False
        self._thread = threading.Thread(target=self._run, name="tfdata-elements", daemon=True)
        self._thread.start()

    def next(self, *, wait: bool) -> Element | None:
        """Return the next element; None where `wait` is false and none has arrived.

        Raises StopIteration at the end and once it is closed, StreamError naming the server that is gone, refuses or is
        silent for longer than the limit.
        """
        deadline = time.monotonic() + self._timeout_s
        fault: StreamError | None = None
        while True:
            with self._lock:
                if self._closed:
                    raise StopIteration
                if self._ready:
                    element = self._ready.popleft()
                    self._has_room.wake()
                    return element
                if self._is_over:
                    raise self._error or StopIteration
            if fault is not None:
                raise fault
            if not wait:
                return None
            if not self._has_news.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
                # Without the lock, so that an element can arrive meanwhile and `close` does not wait.
                fault = self._find_silence(deadline)

    def _find_silence(self, deadline: float) -> StreamError | None:
        """Return why no element will come in time; None where one still may."""
        if time.monotonic() >= deadline:
            return StreamError(
                f"{self.endpoint}: no batch within {self._timeout_s:g} s (timeout_s): look whether the daemon is "
                "stopped, the link is down or a worker has died, whose records are lost; raise timeout_s where "
                "shuffle_buffer takes longer to fill"
            )
        # All at a time: each one that is silent too takes a second.
        with ThreadPoolExecutor(len(self._servers)) as pool:
            answers = list(pool.map(is_refused, self._servers))
        if True in answers:
            host, port = self._servers[answers.index(True)]
            return StreamError(
                f"{self.endpoint}: nothing listens at {host}:{port} any more, and tf.data service loses the rest "
                "of the epoch: start `python -m loaders.tfdata serve` again and repeat the epoch"
            )
        return None

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._pump(self._open())
        except BaseException as caught:  # noqa: BLE001 - raised again in the thread that waits
            error = self._translate(caught)
        with self._lock:
            self._error, self._is_over = error, True
        self._has_news.wake()
        if self._take is not None:
            # After a whole epoch the dispatcher has just been heard of.
            is_answered = self._is_whole or find_fault(self._servers[0], _ANSWER_S) is None
            self._take.close(is_answered=is_answered)
        if self._limit is not None:
            self._limit.cancel()

    def _open(self) -> Take:
        take = Take(self._open_dataset())
        with self._lock:
            self._take = take
            if self._closed:
                take.cancel()
        return take

    def _pump(self, take: Take) -> None:
        while True:
            element = take()
            while len(self._ready) >= _CAPACITY and not self._closed:
                self._has_room.wait()
            if self._closed:
                return
            self._ready.append(element)
            self._has_news.wake()

    def _translate(self, error: BaseException) -> BaseException | None:
        errors = load_tensorflow().errors
        if isinstance(error, errors.OutOfRangeError) or (self._closed and isinstance(error, errors.CancelledError)):
            return None
        if isinstance(error, errors.OpError):
            message = _NODES.sub("", str(error.message).partition("\n")[0])
            return StreamError(f"{self.endpoint}: tf.data service: {type(error).__name__}: {message}; {self._advice}")
        return error

    def finish(self) -> None:
        """Take the end of the dataset in the background, where every element has arrived.

        The client notices the end up to a second late, and a worker whose end nobody takes keeps threads and memory.
        """
        with self._lock:
            if self._closed or self._is_over:
                return
            self._is_whole = self._closed = True
        self._limit = threading.Timer(_END_S, self._cancel)
        self._limit.daemon = True
        self._limit.start()

    def close(self) -> None:
        """Take no more, and end a `next` that another thread is in; may be called twice."""
        with self._lock:
            self._closed = True
        self._has_news.wake()
        self._has_room.wake()
        self._cancel()
        if self._limit is not None:
            self._limit.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def _cancel(self) -> None:
        with self._lock:
            take = self._take
        if take is not None:
            take.cancel()
