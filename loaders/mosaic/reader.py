"""The process that runs MosaicML Streaming for a loader: `python -m loaders.mosaic.reader DESCRIPTOR`.

The descriptor is a socket of packets. The loader sends the settings, and then for each epoch its number and a packet
for each batch that it wants. The reader sends `{"imported": version}` when it has imported the library, what it has
found when it has read the index, for each batch `{"bytes": n}` with the descriptor of the shared memory that has it,
and `{"end": epoch}` or `{"error": message, "kind": kind}`. It ends with the loader.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader

from loaders.errors import LoaderConfigError, LoaderError, ShardError
from loaders.mosaic.library import import_streaming, name_shared_memory
from loaders.mosaic.options import INDEX
from loaders.mosaic.process import MORE, NAMES, PACKET_BYTES, remove_traces
from loaders.records.shards.tfrecord import check_record
from loaders.shared.compat import DEATH_PREFIX, iterator_workers, remove_memory, shared_memory_of

HEADER: Final = ("id", "label", "image", "image_size", "size")
"""Numbers of each sample at the start of a batch, after the number of samples: int64, name by name."""
_LINE: Final = 1000
"""Characters of an error that are passed on."""
_DEATH_S: Final = 5.0
"""Time in which a worker that has closed its socket ends."""


class FetchError(Exception):
    """An object cannot be had or read; the message begins with its key."""

    def __init__(self, message: str, kind: str) -> None:
        """Say whether the `kind` of failure is "denied", "damaged" (or missing), or "network"."""
        super().__init__(message)
        self.kind = kind

    @classmethod
    def of(cls, key: str, error: Exception) -> FetchError:
        """Return the failure to download an object; the library reports a refusal as a missing object."""
        if isinstance(error, cls):
            return error
        answer = getattr(error, "response", None) or {}
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        kind = {401: "denied", 403: "denied", 404: "damaged"}.get(status, "network")
        said = f"HTTP status {status}, {answer['Error'].get('Message')}" if status else _first_line(error)
        return cls(f"{key} cannot be downloaded: {said}", kind)


def make_dataset(settings: dict[str, Any], failures: int) -> Any:
    """Return the StreamingDataset of a loader's settings; a worker that fails writes why to the pipe `failures`.

    Raises FetchError where the index cannot be had or read, ValueError for a setting that the library refuses.
    """
    base = import_streaming()
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    class Dataset(base.StreamingDataset):  # type: ignore[name-defined,misc]
        """A StreamingDataset that says what fails, repeats no sample, and can leave samples to other ranks."""

        def _get_work(self, epoch: int, sample_in_epoch: int) -> np.ndarray[Any, Any]:
            """Return this worker's samples of an epoch: the library's own, or each once of a rank or a limit."""
            rank, world_size, limit = settings["rank"], settings["world_size"], settings["limit"]
            if world_size == 1 and limit is None and self.num_canonical_nodes == 1:
                return super()._get_work(epoch, sample_in_epoch)  # type: ignore[no-any-return]
            order = generate_work(self.batching_method, self, World(1, 1, 1, 0), epoch, sample_in_epoch).flatten()
            order = order[(order >= 0) & (order < (self.num_samples if limit is None else limit))]
            # Several canonical nodes get equal numbers of samples: the library repeats some where there are too few.
            order = order[np.sort(np.unique(order, return_index=True)[1])]
            total = len(order) - len(order) % world_size if settings["remainder"] == "drop" else len(order)
            if settings["remainder"] == "pad":
                total = -(-len(order) // world_size) * world_size
            own = np.array_split(np.resize(order, total), world_size)[rank]
            padded = np.append(own, np.full(-len(own) % self.batch_size, -1))
            world = self._unique_worker_world
            return padded.reshape(-1, self.batch_size)[world.worker_of_rank :: world.workers_per_rank].flatten()

        def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
            """Download a shard; raises FetchError, which names it."""
            try:
                super().prepare_shard(shard_id, blocking)
            except Exception as error:
                raise FetchError.of(self._key(shard_id), error) from error

        def get_item(self, sample_id: int, retry: int = 7) -> Any:
            """Return a sample; raises FetchError, which names its shard."""
            shard_id, _ = self.spanner[sample_id]
            try:
                sample = super().get_item(sample_id, retry)
                if settings["verify"]:
                    check_record(sample["record"], f"{self._key(shard_id)}: sample {sample['id']}")
            except FetchError:
                raise
            except ShardError as error:
                raise FetchError(str(error).partition(";")[0], "damaged") from error
            except Exception as error:
                raise FetchError(f"{self._key(shard_id)} cannot be read: {_first_line(error)}", "damaged") from error
            return sample

        def on_exception(self, future: Any) -> None:
            """Report why a thread of a worker failed; the library itself would end the epoch without an error."""
            if (error := future.exception()) is not None:
                self._event.set()
                _report(error)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            has_failed = False
            try:
                yield from super().__iter__()
            except Exception as error:  # noqa: BLE001 - a worker's error ends the loader's epoch, whatever it is
                _report(error)
                has_failed = True
            if has_failed or self._event.is_set():
                # The loader ends this process. An end here would look like the epoch's.
                threading.Event().wait()

        def _key(self, shard_id: int) -> str:
            return f"{settings['remote']}/{self.shards[shard_id].file_pairs[0][0].basename}"

    def _report(error: BaseException) -> None:
        os.write(failures, json.dumps(_described(error)).encode() + b"\n")

    index = f"{settings['remote']}/{INDEX}"
    try:
        dataset = Dataset(
            remote=settings["remote"], local=settings["local"], batch_size=settings["batch_size"], **settings["dataset"]
        )
    except (json.JSONDecodeError, KeyError) as error:
        raise FetchError(f"{index} cannot be read: {_first_line(error)}", "damaged") from error
    except ValueError:
        raise  # a setting
    except Exception as error:
        raise FetchError.of(index, error) from error
    for stream in dataset.streams:
        # Its client has read the index over a connection that all workers would inherit: they would take each other's
        # answers, and wait without end.
        stream._downloader.clean_up()
    gc.collect()  # the client's objects refer to each other
    if settings["block_shards"] is not None:
        dataset.shuffle_block_size = -(-dataset.num_samples * settings["block_shards"] // dataset.num_shards)
    return dataset


def _described(error: BaseException) -> dict[str, str]:
    """Return the packet of an error."""
    text = str(error) if isinstance(error, LoaderError | FetchError) else _first_line(error)
    kind = getattr(error, "kind", "network")
    if isinstance(error, LoaderConfigError | ValueError):
        kind = "config"
    return {"error": text[:_LINE], "kind": "worker" if DEATH_PREFIX in text else kind}


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:_LINE]


def join_batch(samples: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Return a batch as one tensor of bytes: the number of samples, their HEADER, and the records."""
    records = [sample["record"] for sample in samples]
    numbers = [len(samples)]
    for name in HEADER[:-1]:
        numbers += [sample[name] for sample in samples]
    numbers += map(len, records)
    return torch.frombuffer(bytearray(b"".join([np.array(numbers, np.int64).tobytes(), *records])), dtype=torch.uint8)


def batches_of(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the batches of an epoch; raises RuntimeError as torch does where a worker died while it gave a batch."""
    try:
        yield from loader
    except (ConnectionError, EOFError) as error:
        # Errors of the store are FetchError: this is of the socket over which a worker gives the memory of a batch.
        workers = iterator_workers(loader._iterator)
        # A sentinel is ready before its process can be waited for, so that is_alive() may still say True.
        ended = wait([worker.sentinel for worker in workers], _DEATH_S)
        dead = [str(worker.pid) for worker in workers if worker.sentinel in ended]
        raise RuntimeError(f"{DEATH_PREFIX}(s) {', '.join(dead)}) exited unexpectedly: {error}") from error


class _Reader:
    """The life of the process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loader: DataLoader[torch.Tensor] | None = None
        self._ending = threading.RLock()
        atexit.register(self._end)
        self._settings: dict[str, Any] = json.loads(channel.recv(PACKET_BYTES))
        self._failed, self._failures = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, name="mosaic-watch", daemon=True).start()

    def _watch(self) -> None:
        """End this process with the loader, and report a worker's failure while the others still wait for it."""
        poller = select.poll()
        poller.register(self._channel, select.POLLRDHUP | select.POLLHUP)
        poller.register(self._failed, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor != self._failed:
                    self._end()
                # Each was written at once. The first one ends the epoch.
                self._send(json.loads(os.read(self._failed, PACKET_BYTES).partition(b"\n")[0]))

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], list(descriptors))
        except OSError:
            self._end()

    def _end(self) -> None:
        """Leave nothing: no worker, no shared memory, no file."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises here of the workers that are killed
        # The main thread comes here too once they are. It waits: two would be in each other's way in the folder.
        self._ending.acquire()
        # Those of an iterator that is being made are children; those that are dead are the iterator's alone.
        workers = {*multiprocessing.active_children(), *iterator_workers(getattr(self._loader, "_iterator", None))}
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(_DEATH_S)
        remove_memory(workers)
        remove_traces(os.getpid(), Path(self._settings["folder"]))
        os._exit(0)

    def _init_worker(self, _: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        # The loader sees the end of this process's socket when nobody else has it.
        self._channel.close()

    def run(self) -> None:
        """Serve epochs until the loader closes the socket."""
        torch.set_num_threads(1)
        import_streaming()
        name_shared_memory(f"{NAMES}{os.getpid()}")
        self._send({"imported": metadata.version("mosaicml-streaming")})
        settings = self._settings
        dataset = make_dataset(settings, self._failures)
        self._loader = loader = DataLoader(
            dataset,
            batch_size=settings["batch_size"],
            num_workers=settings["num_workers"],
            prefetch_factor=settings["prefetch_factor"],
            persistent_workers=True,
            collate_fn=join_batch,
            worker_init_fn=self._init_worker,
        )
        self._send({"samples": dataset.num_samples, "shards": dataset.num_shards, "block": dataset.shuffle_block_size})
        while message := self._channel.recv(PACKET_BYTES):
            if message == MORE:
                continue  # asked for before the epoch ended
            epoch = json.loads(message)["epoch"]
            # What the epoch before has downloaded is forgotten: the bytes of every epoch come over the link.
            for shard_id, shard in enumerate(dataset.shards):
                if any(Path(shard.dirname, shard.split, raw.basename).exists() for raw, _ in shard.file_pairs):
                    dataset.evict_shard(shard_id)
            dataset.next_epoch = epoch
            for batch in batches_of(loader):
                if not self._channel.recv(PACKET_BYTES):
                    break
                descriptor, nbytes = shared_memory_of(batch)
                self._send({"bytes": nbytes}, [descriptor])
            self._send({"end": epoch})
        self._end()


def main() -> int:
    """Run a reader on the socket that the command line names; returns the exit status."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        reader = _Reader(channel)
        try:
            reader.run()
        except Exception as error:  # noqa: BLE001 - the loader raises it
            reader._send(_described(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
