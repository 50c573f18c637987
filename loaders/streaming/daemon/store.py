"""Shards mapped into memory, which of their pages are there, and the slices of a request as views of them."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import stat
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulefeed.closing import Closing
from loaders.errors import ShardError, WireError
from loaders.records.planner import Slice
from loaders.records.shards.index import MANIFEST, ShardSet, check_content, index_path, read_manifest
from loaders.records.shards.tfrecord import count_intact
from loaders.streaming.protocol import MAX_RECORDS, BatchHeader, Get, ServedShard, ShardCatalog

_Ints = npt.NDArray[np.int64]
_FEW_SLICES = 32
"""Slices whose rows are joined one by one; the rows of more slices are found by one indexing, which costs less."""

# Python's own mmap.madvise keeps the interpreter's lock while the kernel reads, and its mmap keeps a descriptor.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ = 22  # madvise(2), since Linux 5.14
_PAGE = mmap.PAGESIZE
PAGES_BLOCK = 2 * 2**20
"""Checking every page of every request costs a tenth of sending it, so whole blocks are checked ..."""
_TRUSTED_S = 5.0
"""... and the result is used again for so long."""


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """Return the first `nbytes` of an open file, to read; they stay mapped while a view of them exists.

    Raises OSError where the kernel cannot map it.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, nbytes).atexit = False
    return memoryview(mapped).cast("B").toreadonly()


class Pages:
    """The pages of one mapped file; one thread asks `is_resident`, any thread may `load`."""

    def __init__(self, view: memoryview, name: str) -> None:
        """Show a view of the whole file of this name."""
        self._name, self._view = name, view
        self.address = int(np.frombuffer(view, np.uint8).ctypes.data)
        """Where the file begins in memory."""
        self._nbytes = len(view)
        self._blocks: dict[int, tuple[float, bool]] = {}

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, not copied and not read yet."""
        return self._view[start:end]

    def is_resident(self, start: int, end: int) -> bool:
        """Return whether the bytes from `start` to `end` are in memory, or were a few seconds ago."""
        return self.has_blocks(start // PAGES_BLOCK, (end - 1) // PAGES_BLOCK) or self._look(start, end)

    def has_blocks(self, first: int, last: int) -> bool:
        """Return whether all of the blocks from `first` to `last` are in memory, or were a few seconds ago."""
        now = time.monotonic()
        return all(self._has_block(block, now) for block in range(first, last + 1))

    def begin(self, start: int, end: int) -> None:
        """Have the bytes from `start` to `end` read; do not wait for them."""
        _libc.madvise(*_align(self.address + start, end - start), mmap.MADV_WILLNEED)

    def load(self, start: int, end: int) -> None:
        """Wait until the bytes from `start` to `end` are in memory.

        Raises OSError naming the file if reading fails.
        """
        address, nbytes = _align(self.address + start, end - start)
        # An older kernel has no such advice, and reads a page when it is touched.
        if _libc.madvise(address, nbytes, _MADV_POPULATE_READ) and ctypes.get_errno() != errno.EINVAL:
            # EFAULT: a page cannot be read, because the file is shorter now or the disk fails.
            raise OSError(ctypes.get_errno(), "it became shorter, or its disk fails", self._name)

    def _has_block(self, block: int, now: float) -> bool:
        until, whole = self._blocks.get(block, (0.0, False))
        if now > until:
            whole = self._look(block * PAGES_BLOCK, min(block * PAGES_BLOCK + PAGES_BLOCK, self._nbytes))
            self._blocks[block] = now + _TRUSTED_S, whole
        return whole

    def _look(self, start: int, end: int) -> bool:
        address, nbytes = _align(self.address + start, end - start)
        count = -(-nbytes // _PAGE)
        found = ctypes.create_string_buffer(count)
        if _libc.mincore(address, nbytes, found):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Bit 0 says it; the others are reserved (mincore(2)).
        return found.raw.count(1) == count or all(page & 1 for page in found.raw)


def are_resident(spans: Sequence[tuple[Pages, int, int]]) -> bool:
    """Return whether the bytes of every span, pages with a start and an end, are in memory."""
    # Few, of many small spans.
    blocks = {(pages, start // PAGES_BLOCK, (end - 1) // PAGES_BLOCK) for pages, start, end in spans}
    if all(pages.has_blocks(first, last) for pages, first, last in blocks):
        return True
    return all(pages.is_resident(start, end) for pages, start, end in spans)


def _align(address: int, nbytes: int) -> tuple[int, int]:
    start = address - address % _PAGE
    return start, address + nbytes - start


class Answer(NamedTuple):
    """The answer to a request for slices."""

    header: BatchHeader
    spans: list[tuple[Pages, int, int]]
    """Where every slice begins and ends in which file."""

    @property
    def records(self) -> list[memoryview]:
        """A view of a mapped shard for every slice."""
        return [pages.view(start, end) for pages, start, end in self.spans]

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return sum(end - start for _, start, end in self.spans)

    def is_resident(self) -> bool:
        """Return whether all records are in memory."""
        return are_resident(self.spans)

    def load(self) -> None:
        """Read all records into memory; raises OSError naming the file where that fails."""
        for pages, start, end in self.spans:
            pages.begin(start, end)
        for pages, start, end in self.spans:
            pages.load(start, end)


class ShardStore(Closing):
    """Shards that are served; threads may share it."""

    def __init__(self, root: Path) -> None:
        """Map every shard of a folder; raises ShardError naming one that is missing, does not fit or lies elsewhere."""
        whole = _open_folder(root)
        opened = whole.shards
        self.is_shuffled = whole.is_shuffled
        """Whether the records were shuffled when the shards were made."""
        described = []
        for shard in opened:
            digest = hashlib.blake2b(shard.path.name.encode(), digest_size=16)
            digest.update(shard.records.tobytes())
            described.append(ServedShard(shard.path.name, len(shard.records), shard.nbytes, digest.hexdigest()))
        names = hashlib.blake2b(digest_size=16)
        for one in described:
            names.update(f"{one.name}\0{one.digest}\0".encode())
        self.catalog = ShardCatalog(names.hexdigest(), tuple(described))
        """The shards, as clients learn of them."""
        self.nbytes = sum(shard.nbytes for shard in described)
        """Bytes of all shards."""
        self._pages = [Pages(_map(one.path.resolve(), one.nbytes), one.path.name) for one in opened]
        self._paths = [shard.path for shard in opened]
        self._inodes = [path.stat().st_ino for path in self._paths]
        self._counts = self.catalog.shard_records
        self._base: _Ints = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.int64)
        self._first_rows: list[int] = self._base.tolist()
        # One matrix of all records, so that a request is answered by one indexing.
        records = np.concatenate([shard.records for shard in opened])
        begins, images = records["offset"], records["offset"] + records["image"]
        ends = begins + records["size"]
        columns = (records["id"], records["label"], images, records["image_size"], records["checksum"], begins, ends)
        self._columns: _Ints = np.stack([column.astype(np.int64, copy=False) for column in columns])

    def answer(self, request: Get) -> Answer:
        """Return the records of a request, not copied and not read yet.

        Raises WireError naming the slice that does not exist.
        """
        slices = self._check_slices(request)
        if len(slices) <= _FEW_SLICES:
            rows = [(self._first_rows[shard] + first, records) for shard, first, records in slices]
            parts = [self._columns[:, row : row + records] for row, records in rows]
            begins, stops = [int(part[5, 0]) for part in parts], [int(part[6, -1]) for part in parts]
            columns = np.concatenate(parts, axis=1)
            offsets = columns[2] - np.repeat(begins, [records for _, records in rows])
        else:
            columns, starts, ends, counts = self._rows(slices)
            offsets = columns[2] - np.repeat(starts, counts)
            begins, stops = starts.tolist(), ends.tolist()
        spans = list(zip([self._pages[part.shard] for part in slices], begins, stops, strict=True))
        header = BatchHeader(
            request.sequence, request.epoch, request.batch, columns[0], columns[1], offsets, columns[3], columns[4]
        )
        return Answer(header, spans)

    def _rows(self, slices: tuple[Slice, ...]) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """Return the columns of all records of some slices; the begins, ends and numbers of records of the slices."""
        shards, firsts, counts = np.array(slices, np.int64).T
        before = np.cumsum(counts) - counts
        indices = np.repeat(self._base[shards] + firsts - before, counts)
        columns = self._columns[:, indices + np.arange(len(indices))]
        return columns, columns[5, before], columns[6, before + counts - 1], counts

    def _check_slices(self, request: Get) -> tuple[Slice, ...]:
        counts, total = self._counts, 0
        for shard, first, records in request.slices:
            if shard >= len(counts):
                raise WireError(f"shard {shard} does not exist: there are {len(counts)}")
            if records < 1 or first + records > counts[shard]:
                raise WireError(
                    f"shard {shard} has {counts[shard]} records: there are no {records} from record {first} on"
                )
            total += records
        if total > MAX_RECORDS:
            raise WireError(f"batch {request.batch}: more than {MAX_RECORDS} records")
        for shard in {piece.shard for piece in request.slices}:
            self._check_size(shard)
        return request.slices

    def _check_size(self, shard: int) -> None:
        """Raise WireError where a shard is shorter than it was: a touch of a missing page would end the process."""
        served = self.catalog.shards[shard]
        if not self._is_whole(shard, served.nbytes):
            raise WireError(
                f"{served.name} is shorter than its {served.nbytes} bytes were; restore it and restart the daemon, "
                "which serves the other shards meanwhile"
            )

    def _is_whole(self, shard: int, nbytes: int) -> bool:
        with suppress(OSError):
            status = self._paths[shard].stat()
            if status.st_ino == self._inodes[shard]:
                return status.st_size >= nbytes
        # The mapped file has its name no more.
        try:
            self._pages[shard].load(nbytes - 1, nbytes)
        except OSError:
            return False
        return True

    def find_damage(self, request: Get, answer: Answer) -> str:
        """Compare an answer's records to the index by their checksums; return which one differs, "" for none."""
        at = 0
        for (shard, first, count), records in zip(request.slices, answer.records, strict=True):
            whole = count_intact(records, answer.header.checksums[at : at + count].tolist())
            if whole < count:
                return (
                    f"{self.catalog.shards[shard].name}: record {first + whole} is damaged on the daemon's disk, or is "
                    "not the one that was indexed; restore the shard, or index the folder again, and restart the daemon"
                )
            at += count
        return ""

    def close(self) -> None:
        """Unmap the shards, once nothing refers to their records any more."""
        self._pages.clear()


def _open_folder(root: Path) -> ShardSet:
    real = root.resolve()
    for path in (root / MANIFEST, *(each for shard in read_manifest(root)[1] for each in (shard, index_path(shard)))):
        if path.resolve().parent != real:
            raise ShardError(f"{path} leads out of the shard folder, to {path.resolve()}: it is not served")
    opened = ShardSet.open(root)
    check_content(opened.shards)
    return replace(opened, shards=tuple(sorted(opened.shards, key=lambda shard: shard.path.name)))


def _map(path: Path, nbytes: int) -> memoryview:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ShardError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size != nbytes:
            raise ShardError(f"{path}: expected a file of {nbytes} bytes; convert the data again")
        return map_file(file, nbytes)
    except OSError as error:
        raise ShardError(
            f"{path} cannot be mapped: {error.strerror}; of many shards, vm.max_map_count may have to be raised"
        ) from error
    finally:
        os.close(file)
