"""Raw batches of an epoch, made of the elements that the workers send."""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from loaders.errors import StreamError
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.index import RECORD
from loaders.records.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, masked_crc32c
from loaders.tfdata.elements import Elements
from loaders.tfdata.tensorflow import Element

ADVICE: Final = "copy or convert the shards again on the storage node"
_LENGTH_BYTES: Final = 8


class EpochFetch:
    """Joins and cuts elements into batches: those of several workers are short where a worker's records end."""

    def __init__(self, elements: Elements, epoch: int, batch_size: int, expected: npt.NDArray[np.int64]) -> None:
        """Take the elements of an epoch; `expected` is how often it has each record, by number."""
        self._elements, self._epoch, self._batch_size = elements, epoch, batch_size
        self._missing, self._total = expected, int(expected.sum())
        self._left = self._total
        self._rows = np.empty(0, RECORD)
        self._payloads: list[bytes] = []
        self._batch = 0
        self._closed = False
        self.failed = False
        """Whether the service has failed, so that the catalog may be out of date."""

    def next(self, wait: bool) -> RawBatch | None:
        """Return the next batch; None where `wait` is false and it has not arrived.

        Raises StopIteration at the end and once it is closed, StreamError where the service fails, is silent, ends the
        epoch early, or sends a record again or one that the epoch has not.
        """
        while len(self._payloads) < min(self._batch_size, len(self._payloads) + self._left):
            try:
                element = self._elements.next(wait=wait)
            except StreamError as error:
                raise self._fail(str(error)) from error
            except StopIteration:
                if self._closed:
                    raise
                raise self._fail(
                    f"{self._elements.endpoint}: tf.data service has ended the epoch early: a worker has died, or a "
                    f"shard has fewer records than its index; {ADVICE}"
                ) from None
            if element is None:
                return None
            self._add(element)
        if not self._payloads:
            self._closed = True
            self._elements.finish()
            raise StopIteration
        count = min(self._batch_size, len(self._payloads))
        rows, payloads = self._rows[:count], self._payloads[:count]
        self._rows, self._payloads = self._rows[count:], self._payloads[count:]
        return self._join(rows, payloads)

    def _fail(self, why: str) -> StreamError:
        self.failed = True
        return StreamError(f"{why}; {self._left} of {self._total} records are missing of epoch {self._epoch}")

    def _add(self, element: Element) -> None:
        numbers, rows, payloads = element
        np.subtract.at(self._missing, numbers, 1)
        if (self._missing[numbers] < 0).any():
            number = int(numbers[self._missing[numbers] < 0][0])
            raise self._fail(
                f"{self._elements.endpoint}: tf.data service sent record {number} of all shards again, or out of this "
                "rank's share; start the daemon again and repeat the epoch"
            )
        self._left -= len(numbers)
        self._rows = np.concatenate((self._rows, np.frombuffer(b"".join(rows.tolist()), RECORD)))
        self._payloads += payloads.tolist()

    def _join(self, rows: npt.NDArray[np.void], payloads: list[bytes]) -> RawBatch:
        """Return a batch as one frame of records, framed again as they lie in a shard."""
        sizes = np.array([len(payload) for payload in payloads], np.int64) + HEADER_BYTES + FOOTER_BYTES
        if (sizes != rows["size"]).any():
            number = int(rows["id"][sizes != rows["size"]][0])
            raise self._fail(
                f"{self._elements.endpoint}: the record of sample {number} has another size than its index says; index "
                "or convert the shards again"
            )
        footers = rows["checksum"].astype("<u4").tobytes()
        parts = (
            (*_header(len(payload)), payload, footers[4 * place : 4 * place + 4])
            for place, payload in enumerate(payloads)
        )
        frame = memoryview(b"".join(chain.from_iterable(parts)))
        starts = np.cumsum(sizes) - sizes
        self._batch += 1
        return RawBatch(
            self._epoch,
            self._batch - 1,
            rows["id"].astype(np.int64),
            rows["label"].astype(np.int64),
            (frame,),
            np.zeros(len(rows), np.int64),
            starts + rows["image"],
            rows["image_size"].astype(np.int64),
            rows["checksum"].astype(np.int64),
        )

    def close(self) -> None:
        """Drop the requests under way and end a `next` that another thread is in; may be called twice."""
        if not self._closed:
            self.end()

    def end(self) -> None:
        """Do the same where the end of a whole epoch is taken in the background as well."""
        self._closed = True
        self._elements.close()


def _header(size: int) -> tuple[bytes, bytes]:
    length = size.to_bytes(_LENGTH_BYTES, "little")
    return length, masked_crc32c(length).to_bytes(HEADER_BYTES - _LENGTH_BYTES, "little")
