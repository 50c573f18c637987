"""From requests to answers: records are found, read from disk where needed, and given to ZeroMQ."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import zmq

from loaders.errors import DamagedError, WireError
from loaders.streaming.daemon.counters import DaemonCounters, Log
from loaders.streaming.daemon.send_budget import MAX_OWNED_BYTES, Name, Reservation, SendBudget
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.store import Answer, ShardStore
from loaders.streaming.memory import keep_freed_memory
from loaders.streaming.protocol import (
    MAX_PADDING,
    Buffer,
    Damaged,
    Get,
    Health,
    HealthReport,
    Hello,
    Refusal,
    Warm,
    Warmed,
    pack,
    pack_joined,
    pack_whole,
    unpack_request,
)
from loaders.streaming.timestamps import EpochMarks

_ANSWER_BYTES, _FRAME_BYTES, _RECORD_BYTES = 1024, 512, 40
"""Measured memory of an answer, of each frame of records and of each record, beside the bytes."""
_FRAME_WORTH_BYTES = 64 * 2**10
"""Mean size of slices below which an answer goes in one frame: ZeroMQ's work for a frame equals copying these."""
_MAX_COPIED_BYTES = 32 * 2**20
"""Most bytes of records that are copied into one frame; more travel in frames of their own."""
_DISK_THREADS = 8
"""Threads that wait until records are read; a disk with a queue is faster."""
_FIRST_FRAME = zmq.SNDMORE | zmq.NOBLOCK


@dataclass(slots=True)
class _BatchAnswer:
    """An answer on its way to a client."""

    name: Name
    get: Get
    answer: Answer
    reservation: Reservation
    is_copied: bool
    """Whether its records travel in one frame."""
    failure: str = ""
    """Why it cannot be sent."""
    message: Buffer = b""
    """All of it, where a thread has serialised it."""


class RequestHandler:
    """Answers requests; one thread uses it."""

    def __init__(
        self,
        store: ShardStore,
        socket: ServerSocket,
        budget: SendBudget,
        counters: DaemonCounters,
        *,
        threads: int,
        report: Callable[[], dict[str, object]],
        marks: EpochMarks | None,
        log: Log,
    ) -> None:
        self._store, self._socket, self._budget, self._counters = store, socket, budget, counters
        self._report, self._marks, self._log = report, marks, log
        self._zeros = memoryview(bytes(MAX_PADDING))
        # All threads allocate from one arena, so that the kept memory does not grow with their number.
        keep_freed_memory(MAX_OWNED_BYTES, arenas=1)
        self._disk = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="streaming-disk")
        self._serializers = ThreadPoolExecutor(threads, "streaming-serializer")
        self._loaded: deque[_BatchAnswer] = deque()

    def send_loaded(self) -> None:
        """Send the batches that were read from disk since."""
        while self._loaded:
            self._send_batch(self._loaded.popleft())

    def take(self, name: Name, frames: list[bytes]) -> None:
        """Answer a request that has arrived, or queue it until its client has room for the answer."""
        self._counters.requests += 1
        if len(frames) != 1:
            self._count_malformed(f"a request of {len(frames)} frames, expected 1")
        elif self._budget.has_room(name):
            self.answer(name, frames[0])
        elif not self._budget.wait(name, frames[0]):
            self._count_dropped(1)

    def _count_malformed(self, reason: str) -> None:
        self._counters.count("malformed", 1, self._log, reason=reason)

    def _count_dropped(self, count: int) -> None:
        self._counters.count("dropped", count, self._log, reason="its client is gone, or asks without reading")

    def answer(self, name: Name, data: Buffer) -> None:
        """Answer a request now."""
        try:
            request = unpack_request(data)
        except WireError as error:
            self._count_malformed(str(error))
            if isinstance(error, DamagedError):
                self._send_small(name, pack(Damaged()))
            return
        match request:
            case Get():
                self._answer_get(name, request)
            case Warm():
                self._send_small(name, pack(Warmed(request.sequence)), self._zeros[: request.padding])
            case Hello():
                self._send_small(name, pack(self._store.catalog))
            case Health():
                self._send_small(name, pack(HealthReport(self._report())))

    def _answer_get(self, name: Name, get: Get) -> None:
        try:
            if get.fingerprint != self._store.catalog.fingerprint:
                raise WireError("the shards are not those that this client planned with; start its epoch again")
            answer = self._store.answer(get)
        except WireError as error:
            self._refuse(name, get, str(error))
            return
        overhead = _ANSWER_BYTES + _FRAME_BYTES * len(answer.spans) + _RECORD_BYTES * len(answer.header.ids)
        is_small = answer.nbytes < _FRAME_WORTH_BYTES * (len(answer.spans) - 1)
        is_copied = (is_small or get.wire == "msgpack") and answer.nbytes <= _MAX_COPIED_BYTES
        owned = overhead + (answer.nbytes if is_copied else 0)
        reservation = self._budget.reserve(name, nbytes=overhead + answer.nbytes, owned=owned)
        batch = _BatchAnswer(name, get, answer, reservation, is_copied)
        if get.wire == "msgpack":
            self._serializers.submit(self._load, batch)
        elif answer.is_resident() and not get.check:
            self._send_batch(batch)
        else:
            self._counters.from_disk += 1
            self._disk.submit(self._load, batch)

    def _load(self, batch: _BatchAnswer) -> None:
        """Wait for the disk, and serialise; runs in a thread of its own."""
        try:
            batch.answer.load()
            if batch.get.check:
                batch.failure = self._store.find_damage(batch.get, batch.answer)
            if batch.is_copied and batch.get.wire == "msgpack" and not batch.failure:
                batch.message = pack_whole(batch.answer.header, batch.answer.records)
        except OSError as error:
            batch.failure = f"{error.filename} cannot be read: {error.strerror}; restore it and restart the daemon"
        self._loaded.append(batch)
        os.eventfd_write(self._budget.wake, 1)

    def _send_batch(self, batch: _BatchAnswer) -> None:
        name, get, answer = batch.name, batch.get, batch.answer
        if batch.failure:
            self._log("unreadable", batch=get.batch, epoch=get.epoch, reason=batch.failure)
            self._refuse(name, get, batch.failure)
            return
        if batch.message:
            sent = self._send(name, batch.reservation, batch.message)
        elif batch.is_copied:
            header, joined = pack_joined(answer.header, answer.records)
            sent = self._send(name, batch.reservation, joined, header=header)
        elif sent := self._send(name, batch.reservation, pack(answer.header), more=True):
            self._send_records(answer)
        if sent:
            self._counters.batches += 1
            self._counters.bytes += answer.nbytes
            if self._marks is not None:
                self._marks.sent(get.epoch, get.batch, len(answer.header.ids), answer.nbytes)

    def _send_records(self, answer: Answer) -> None:
        """Send the records as the frames that follow an answer's header, not copied."""
        last = len(answer.spans) - 1
        for index, (pages, start, end) in enumerate(answer.spans):
            self._socket.send_mapped(pages.address + start, end - start, more=index < last)

    def _refuse(self, name: Name, get: Get, reason: str) -> None:
        self._counters.refused += 1
        self._send_small(name, pack(Refusal(get.sequence, reason)))

    def _send_small(self, name: Name, data: bytes, padding: memoryview | None = None) -> None:
        nbytes = len(data) + (len(padding) if padding is not None else 0)
        reservation = self._budget.reserve(name, nbytes=nbytes + _ANSWER_BYTES, owned=len(data) + _ANSWER_BYTES)
        if self._send(name, reservation, data, more=padding is not None) and padding is not None:
            self._socket.socket.send(padding, copy=False)

    def _send(
        self, name: Name, reservation: Reservation, held: Buffer, *, header: bytes | None = None, more: bool = False
    ) -> bool:
        """Send an answer's first frames, of which `held` owns the reservation; return False if the client is gone."""
        socket = self._socket.socket
        try:
            socket.send(name, _FIRST_FRAME)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._count_dropped(1 + self._budget.forget(name))
            return False
        if header is not None:
            socket.send(header, zmq.SNDMORE)
        socket.send(zmq.Frame(reservation.hold(held), copy=False), zmq.SNDMORE if more else 0, copy=False)
        return True

    def close(self) -> None:
        """Stop reading from disk; unsent answers are dropped."""
        for threads in (self._disk, self._serializers):
            threads.shutdown(cancel_futures=True)
        self._loaded.clear()
