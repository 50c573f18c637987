"""Ranges of shards on their way from an object store into the cache, many at a time and none of them twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise

from energymon.system.closing import Closing
from loaders.errors import ObjectStoreError
from loaders.shared.objects.bucket import Bucket, ObjectInfo, UnreachableStoreError
from loaders.streaming.objects.block_cache import BLOCK, BlockCache

THREADS = 24
"""Requests under way to the store ..."""
_RUN = 8
"""... of so many blocks at most, 2 MiB: a server's work for a request is that for 1 MiB. Together they take 48 MiB."""
_AHEAD = 16 * _RUN * THREADS
"""Blocks that are asked for before a client has room for them, at most."""
_LOOK_S = 0.2
"""How often a thread that waits for blocks looks whether the daemon stops."""
_TRIES = 3
"""Times that blocks are fetched which others pushed out before they were read."""


class Fetcher(Closing):
    """Fetches what the cache does not have; threads may share it."""

    def __init__(self, bucket: Bucket, cache: BlockCache, names: Sequence[str], infos: Sequence[ObjectInfo]) -> None:
        """Fetch from the objects of these names."""
        self._bucket, self._cache, self._names, self._infos = bucket, cache, names, infos
        self._is_kept = cache.limit >= sum(-(-info.nbytes // BLOCK) * BLOCK for info in infos)
        """Whether nothing is fetched twice, so that blocks beside those that are asked for may come with them."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="streaming-objects")
        self._lock = threading.Lock()
        self._coming: dict[int, Future[bool]] = {}
        """By block: whether it will be in the cache."""
        self._failed: tuple[float, str] | None = None
        """When a request found the store out of reach, and the message of its error."""
        self._closed = False
        self.fetched_bytes = self.uncached_bytes = self.failures = 0
        """Bytes from the store; those of them that found no room in the cache; requests that failed."""

    def begin(self, shard: int, start: int, end: int) -> None:
        """Fetch what is missing of a range, if not too much is under way; do not wait for it."""
        if len(self._coming) < min(_AHEAD, self._cache.limit // BLOCK // 4):
            self._start(shard, start, end)

    def load(self, shard: int, start: int, end: int) -> memoryview | None:
        """Wait until a range, which is pinned, is in the cache; return its bytes where the cache has no room for it.

        Raises ObjectStoreError naming the object that cannot be had.
        """
        blocks = self._cache.blocks(shard, start, end)
        for _ in range(_TRIES):
            coming = self._start(shard, start, end)
            if coming is None:
                break
            while wait(coming, _LOOK_S).not_done:
                self._check_open()
            if not all([future.result() for future in coming]):
                break
            if self._cache.has(blocks):
                return None
        data = self._read(shard, start, end, time.monotonic())
        with self._lock:
            self.uncached_bytes += end - start
        return data

    def renew(self, shard: int, start: int, end: int) -> bool:
        """Fetch a range that is in the cache once more; return False where that fails."""
        try:
            self._cache.rewrite(shard, start, self._read(shard, start, end, time.monotonic()))
        except (OSError, ObjectStoreError):
            return False
        return True

    def close(self) -> None:
        """Fetch nothing more, and do not wait for requests under way; may be called twice."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, shard: int, start: int, end: int) -> list[Future[bool]] | None:
        """Start to fetch what is missing; return what to wait for, or None where there is no room for it."""
        blocks = self._cache.blocks(shard, start, end)
        with self._lock:
            self._check_open()
            claimed = self._cache.claim(self._widen(shard, start, end)) if self._is_kept else None
            if claimed is None:
                claimed = self._cache.claim(blocks)
            if claimed is None:
                return None
            for run in _cut(claimed):
                future = self._threads.submit(self._fetch, shard, run, time.monotonic())
                for block in range(run.start, run.stop):
                    self._coming[block] = future
            return list({self._coming[block] for block in range(blocks.start, blocks.stop) if block in self._coming})

    def _widen(self, shard: int, start: int, end: int) -> slice:
        """Return the blocks of a range and those beside it that one request brings as well."""
        whole = _RUN * BLOCK
        return self._cache.blocks(
            shard, start - start % whole, min(-(-end // whole) * whole, self._infos[shard].nbytes)
        )

    def _fetch(self, shard: int, run: slice, since: float) -> bool:
        """Bring blocks into the cache; return whether they are there. They are wanted since that time."""
        is_stored = False
        try:
            first = self._cache.blocks(shard, 0, 1).start
            start, end = (run.start - first) * BLOCK, min((run.stop - first) * BLOCK, self._infos[shard].nbytes)
            data = self._read(shard, start, end, since)
            self._check_open()
            is_stored = self._cache.write(shard, run.start, data)
        finally:
            with self._lock:
                for block in range(run.start, run.stop):
                    self._coming.pop(block, None)
                if not is_stored:
                    self._cache.give_back(run)
        return is_stored

    def _read(self, shard: int, start: int, end: int, since: float) -> memoryview:
        if self._failed is not None and since < self._failed[0]:
            # It waited while the store was out of reach; a client waits no longer for all that waited with it.
            raise UnreachableStoreError(self._failed[1])
        try:
            data = self._bucket.read_range(self._names[shard], self._infos[shard], start, end)
        except ObjectStoreError as error:
            with self._lock:
                self.failures += 1
                if isinstance(error, UnreachableStoreError):
                    self._failed = time.monotonic(), str(error)
            raise
        with self._lock:
            self.fetched_bytes += end - start
        return data

    def _check_open(self) -> None:
        if self._closed:
            raise ObjectStoreError("the daemon stops")


def _cut(blocks: Sequence[int]) -> list[slice]:
    """Return runs of sorted blocks, of about equal size where one is too long for a request."""
    runs: list[slice] = []
    for block in blocks:
        if runs and runs[-1].stop == block:
            runs[-1] = slice(runs[-1].start, block + 1)
        else:
            runs.append(slice(block, block + 1))
    cut: list[slice] = []
    for run in runs:
        parts = -(-(run.stop - run.start) // _RUN)
        edges = [run.start + (run.stop - run.start) * part // parts for part in range(parts + 1)]
        cut += [slice(begin, end) for begin, end in pairwise(edges)]
    return cut
