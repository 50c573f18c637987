"""From requests to answers: what is asked for is found, read from disk where it has to be, and handed to ZeroMQ."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import zmq

from loaders.streaming.daemon.log import Log, is_logged
from loaders.streaming.daemon.outbox import Name, Outbox, Place
from loaders.streaming.daemon.served import Served
from loaders.streaming.daemon.server_socket import ServerSocket
from loaders.streaming.daemon.store import Answer, ShardStore
from loaders.streaming.errors import DamagedError, WireError
from loaders.streaming.protocol.messages import (
    MAX_PADDING,
    Buffer,
    Damaged,
    Get,
    Health,
    Hello,
    Refusal,
    Report,
    Warm,
    Warmed,
)
from loaders.streaming.protocol.wire import pack, pack_joined, pack_whole, unpack_request
from loaders.streaming.timestamps import EpochMarks

__all__ = ["Answers"]

_LOADERS = 8
"""Threads that wait for the disk; a disk with a queue is faster."""
_ANSWER_BYTES, _FRAME_BYTES, _RECORD_BYTES = 1024, 512, 40
"""What an answer, each frame of records and each record cost in memory beside the bytes, as measured."""
_FRAME_WORTH_BYTES = 64 * 2**10
"""Mean size of slices below which an answer goes in one frame: ZeroMQ's work for a frame is that of copying these."""
_WHOLE_BYTES = 32 * 2**20
"""Most bytes of records that are copied into one frame; more travel in frames of their own."""


@dataclass(slots=True)
class _Batch:
    """An answer on its way to a client."""

    name: Name
    get: Get
    answer: Answer
    place: Place
    is_copied: bool
    """Whether its records travel in one frame."""
    failed: str = ""
    """Why it cannot be sent."""


class Answers:
    """Answers requests; one thread uses it."""

    def __init__(
        self,
        store: ShardStore,
        socket: ServerSocket,
        outbox: Outbox,
        served: Served,
        *,
        report: Callable[[], dict[str, object]],
        marks: EpochMarks | None,
        log: Log,
    ) -> None:
        self._store, self._socket, self._outbox, self._served = store, socket, outbox, served
        self._report, self._marks, self._log = report, marks, log
        self._zeros = memoryview(bytes(MAX_PADDING))
        self._disk = ThreadPoolExecutor(_LOADERS, thread_name_prefix="streaming-disk")
        self._loaded: deque[_Batch] = deque()

    def send_loaded(self) -> None:
        """Send what has been read from disk since."""
        while self._loaded:
            self._send_batch(self._loaded.popleft())

    def take(self, name: Name, frames: list[bytes]) -> None:
        """Answer a request that has arrived, or have it wait until its client has room for the answer."""
        self._served.requests += 1
        if len(frames) != 1:
            self._malformed(f"a request of {len(frames)} frames, expected 1")
        elif self._outbox.room(name):
            self.answer(name, frames[0])
        elif (greedy := self._outbox.wait(name, frames[0])) is not None:
            # No client of ours asks for so much; it connects again, and asks again.
            self._served.dropped += self._outbox.gone(greedy)
            self._served.shed += 1
            if (connection := self._socket.connections.named(greedy)) is not None:
                connection.close()

    def _malformed(self, reason: str) -> None:
        self._served.malformed += 1
        if is_logged(self._served.malformed):
            self._log("malformed", count=self._served.malformed, reason=reason)

    def answer(self, name: Name, data: Buffer) -> None:
        """Answer a request now."""
        try:
            request = unpack_request(data)
        except WireError as error:
            self._malformed(str(error))
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
                self._send_small(name, pack(Report(self._report())))

    def _answer_get(self, name: Name, get: Get) -> None:
        try:
            if get.fingerprint != self._store.catalog.fingerprint:
                raise WireError("the shards are not those that this client planned with; start its epoch again")
            answer = self._store.answer(get)
        except WireError as error:
            self._refuse(name, get, str(error))
            return
        overhead = _ANSWER_BYTES + _FRAME_BYTES * len(answer.records) + _RECORD_BYTES * len(answer.header.ids)
        is_small = answer.nbytes < _FRAME_WORTH_BYTES * (len(answer.records) - 1)
        is_copied = (is_small or get.wire == "msgpack") and answer.nbytes <= _WHOLE_BYTES
        owned = overhead + (answer.nbytes if is_copied else 0)
        place = self._outbox.place(name, nbytes=overhead + answer.nbytes, owned=owned)
        batch = _Batch(name, get, answer, place, is_copied)
        if answer.resident() and not get.check:
            self._send_batch(batch)
        else:
            self._served.from_disk += 1
            self._disk.submit(self._load, batch)

    def _load(self, batch: _Batch) -> None:
        """Wait for the disk; runs in a thread of its own."""
        try:
            batch.answer.load()
            if batch.get.check:
                batch.failed = self._store.damage(batch.get, batch.answer)
        except OSError as error:
            batch.failed = f"{error.filename} cannot be read: {error.strerror}; restore it and restart the daemon"
        self._loaded.append(batch)
        os.eventfd_write(self._outbox.wake, 1)

    def _send_batch(self, batch: _Batch) -> None:
        name, get, answer = batch.name, batch.get, batch.answer
        if batch.failed:
            self._log("unreadable", batch=get.batch, epoch=get.epoch, reason=batch.failed)
            self._refuse(name, get, batch.failed)
            return
        if batch.is_copied and get.wire == "msgpack":
            sent = self._send(name, batch.place, pack_whole(answer.header, answer.records))
        elif batch.is_copied:
            header, joined = pack_joined(answer.header, answer.records)
            sent = self._send(name, batch.place, joined, header=header)
        elif sent := self._send(name, batch.place, pack(answer.header), more=True):
            socket, last = self._socket.socket, len(answer.records) - 1
            for index, records in enumerate(answer.records):
                # A frame of its own, for `send` copies what is small.
                frame = zmq.Frame(records, copy=False)
                socket.send(frame, zmq.SNDMORE if index < last else 0, copy=False)
        if sent:
            self._served.batches += 1
            self._served.bytes += answer.nbytes
            if self._marks is not None:
                self._marks.sent(get.epoch, get.batch, len(answer.header.ids), answer.nbytes)

    def _refuse(self, name: Name, get: Get, reason: str) -> None:
        self._served.refused += 1
        self._send_small(name, pack(Refusal(get.sequence, reason)))

    def _send_small(self, name: Name, data: bytes, *more: Buffer) -> None:
        nbytes = len(data) + sum(len(frame) for frame in more)
        place = self._outbox.place(name, nbytes=nbytes + _ANSWER_BYTES, owned=len(data) + _ANSWER_BYTES)
        if self._send(name, place, data, more=bool(more)):
            for index, frame in enumerate(more, 1):
                self._socket.socket.send(frame, zmq.SNDMORE if index < len(more) else 0, copy=False)

    def _send(self, name: Name, place: Place, held: bytes, *, header: bytes | None = None, more: bool = False) -> bool:
        """Hand an answer's first frames to ZeroMQ, of which `held` has its place; return False where nobody is."""
        socket = self._socket.socket
        try:
            socket.send(name, zmq.SNDMORE | zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._served.dropped += 1 + self._outbox.gone(name)
            return False
        if header is not None:
            socket.send(header, zmq.SNDMORE)
        socket.send(zmq.Frame(place.hold(held), copy=False), zmq.SNDMORE if more else 0, copy=False)
        return True

    def close(self) -> None:
        """Stop to read from disk; what has not been sent is not."""
        self._disk.shutdown(cancel_futures=True)
        self._loaded.clear()
