"""A shard folder in an object store, opened to be served: its indexes are here, its records come as they are needed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, ObjectStoreError, ShardError
from loaders.records.shards.index import (
    MANIFEST,
    Shard,
    ShardSet,
    index_path,
    list_shards,
    load_index,
    load_manifest,
    write_atomically,
)
from loaders.shared.objects.address import ObjectAddress
from loaders.shared.objects.bucket import Bucket, MissingObjectError, ObjectInfo
from loaders.shared.objects.keys import ObjectKeys
from loaders.streaming.daemon.counters import Log
from loaders.streaming.daemon.mapped_file import map_file
from loaders.streaming.daemon.store import ServedShards
from loaders.streaming.objects.block_cache import BLOCK, BlockCache
from loaders.streaming.objects.fetcher import THREADS, Fetcher
from loaders.streaming.objects.pages import CachedPages

_STATE, _BLOCKS, _LOCK = "state.json", "blocks", "lock"
_READERS = 32


@contextmanager
def open_remote(
    address: ObjectAddress, keys: ObjectKeys, *, cache: Path, cache_mb: int, timeout_s: float, log: Log
) -> Iterator[ServedShards]:
    """Open a shard folder in an object store; the cache keeps what it has for the next time.

    Args:
        address: of the shard folder.
        keys: of the store.
        cache: folder of caches, in which this dataset has a folder of its own.
        cache_mb: most bytes of records in that folder, in MiB.
        timeout_s: seconds after which a request to the store fails.
        log: takes an event and its fields.

    Raises ObjectStoreError naming the object that is missing or does not fit, ShardError for an index that is damaged,
    LoaderConfigError for a folder that cannot be used.
    """
    with ExitStack() as stack:
        with _cache_errors(cache):
            folder = cache.absolute() / _name(address)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.geteuid():
                folder.chmod(0o700)  # the bucket may be private
            stack.enter_context(_locked(folder))
            bucket = Bucket(address, keys, timeout_s=timeout_s)
            try:
                opened, infos = _fetch_indexes(bucket, folder)
            except ShardError as error:
                raise ShardError(f"{address.describe()}: {error}; upload the shards again") from error
            names, paths = [shard.path.name for shard in opened.shards], [shard.path for shard in opened.shards]
            present = _take_over(folder, names, infos, log)
            blocks = stack.enter_context(
                BlockCache(paths, [info.nbytes for info in infos], present, cache_mb * 2**20, log)
            )
            fetcher = stack.enter_context(Fetcher(bucket, blocks, names, infos))
            pages = [
                CachedPages(_map(path), f"{path.name} in the cache {folder}", place, blocks, fetcher)
                for place, path in enumerate(paths)
            ]
        log("cache", folder=str(folder), cached_bytes=blocks.nbytes, limit_bytes=blocks.limit)

        def report() -> dict[str, object]:
            return {
                "cached_bytes": blocks.nbytes,
                "cache_limit_bytes": blocks.limit,
                "evicted_bytes": blocks.evicted * BLOCK,
                "fetched_bytes": fetcher.fetched_bytes,
                "uncached_bytes": fetcher.uncached_bytes,
                "failed_fetches": fetcher.failures,
            }

        yield ServedShards(opened, pages, f"in {address.describe()}", 2 * THREADS, report, fetcher.close)


def _name(address: ObjectAddress) -> str:
    """Return the name of a dataset's folder in the cache."""
    whole = f"{address.endpoint}\0{address.url()}"
    return f"{address.bucket}-{hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other daemons out of a folder; raises LoaderConfigError where one is in it."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LoaderConfigError(
                f"--cache {folder.parent}: another daemon (process {holder}) caches the same shards there; give each "
                "daemon a folder of its own"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LoaderConfigError(
            f"--cache {cache}: {error.filename or 'a file in it'} cannot be used ({error.strerror}); name a folder "
            "that can be written and has room for the indexes"
        ) from error


def _fetch_indexes(bucket: Bucket, folder: Path) -> tuple[ShardSet, list[ObjectInfo]]:
    """Fetch the manifest and the indexes, make a sparse file of each shard; return them with what the store says."""
    try:
        manifest, _ = bucket.read(MANIFEST)
    except MissingObjectError as error:
        raise MissingObjectError(
            f"{error}; make it with `python -m loaders.streaming upload DIR {bucket.address.url()}`"
        ) from error
    _write(folder / MANIFEST, manifest)
    paths = list_shards(folder)
    stated = {str(entry["name"]): entry.get("bytes") for entry in load_manifest(folder)["shards"]}

    def fetch(path: Path) -> ObjectInfo:
        info = bucket.info(path.name)
        if info.nbytes != stated[path.name]:
            raise ObjectStoreError(
                f"{bucket.address.describe(path.name)}: has {info.nbytes} bytes, {stated[path.name]} in the manifest: "
                "it is cut short, or of another dataset; upload the shards again"
            )
        _write(index_path(path), bucket.read(index_path(path).name)[0])
        with path.open("ab") as file:
            file.truncate(info.nbytes)
        _check_last(bucket, load_index(path), info)
        return info

    with ThreadPoolExecutor(_READERS) as threads:
        infos = dict(zip([path.name for path in paths], threads.map(fetch, paths), strict=True))
    opened = ShardSet.open(folder).sorted_by_name()
    return opened, [infos[shard.path.name] for shard in opened.shards]


def _check_last(bucket: Bucket, shard: Shard, info: ObjectInfo) -> None:
    """Compare the last record's checksum to the index; raises ShardError where the shard is not the indexed one."""
    stated = bucket.read_range(shard.path.name, info, info.nbytes - 4, info.nbytes)
    if int.from_bytes(stated, "little") != shard.records["checksum"][-1]:
        raise ShardError(f"{shard.path.name}: record {len(shard.records) - 1} is not the one that was indexed")


def _take_over(folder: Path, names: list[str], infos: list[ObjectInfo], log: Log) -> npt.NDArray[np.uint8]:
    """Return which blocks are in the cache, in a file that is kept: those of shards that have not changed since.

    Without a clean end of the machine, what the kernel had not written yet is lost, so only blocks of this boot count.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        state = json.loads((folder / _STATE).read_text())
        old = np.fromfile(folder / _BLOCKS, np.uint8)
        known = {str(name): (int(nbytes), str(etag)) for name, nbytes, etag in state["shards"]}
        is_whole = state["boot"] == boot and state["block"] == BLOCK
        is_whole &= len(old) == sum(-(-nbytes // BLOCK) for nbytes, _ in known.values())
    except (OSError, ValueError, KeyError, TypeError):
        old, known, is_whole = np.zeros(0, np.uint8), {}, False
    kept, at = {}, 0
    for name, (nbytes, etag) in known.items() if is_whole else ():
        kept[name, nbytes, etag] = old[at : at - (-nbytes // BLOCK)]
        at -= -nbytes // BLOCK
    found: list[npt.NDArray[np.uint8]] = []
    for name, info in zip(names, infos, strict=True):
        blocks = kept.pop((name, info.nbytes, info.etag), None)
        if blocks is None:
            blocks = np.zeros(-(-info.nbytes // BLOCK), np.uint8)
            # What it has, of which nothing is known, would take room beyond the limit.
            os.truncate(folder / name, 0)
            os.truncate(folder / name, info.nbytes)
        found.append(blocks)
    for name in known.keys() - set(names):
        if Path(name).name != name:
            continue
        (folder / name).unlink(missing_ok=True)
        index_path(folder / name).unlink(missing_ok=True)
    if known and not is_whole:
        log(
            "cache_dropped",
            folder=str(folder),
            reason="the machine was started again since, or another version wrote it",
        )
    # The state goes first: blocks must never be taken for those of other shards.
    (folder / _STATE).unlink(missing_ok=True)
    _write(folder / _BLOCKS, np.concatenate(found).tobytes())
    shards = [[name, info.nbytes, info.etag] for name, info in zip(names, infos, strict=True)]
    _write(folder / _STATE, json.dumps({"boot": boot, "block": BLOCK, "shards": shards}).encode())
    return np.memmap(folder / _BLOCKS, np.uint8, "r+")


def _write(path: Path, content: bytes | memoryview) -> None:
    with write_atomically(path) as file:
        file.write(content)


def _map(path: Path) -> memoryview:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return map_file(file, os.fstat(file).st_size)
    finally:
        os.close(file)
