"""Memory that processes share by descriptor: it has no name, so nothing of it is left when one of them is killed."""

from __future__ import annotations

import mmap
import os

__all__ = ["SharedMemory"]


class SharedMemory:
    """Shared memory that either side may make larger; who maps it sees that when it asks for a view."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Make new memory, or take up what another process made and handed over as a descriptor."""
        self.descriptor = os.memfd_create("streaming-decode", os.MFD_CLOEXEC) if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def view(self, nbytes: int) -> memoryview:
        """Return the first bytes, after making room for them."""
        return memoryview(self.mapped(nbytes))[:nbytes]

    def mapped(self, nbytes: int) -> mmap.mmap:
        """Return the memory as it is mapped, after making room for so many bytes."""
        if self._map is None or len(self._map) < nbytes:
            size = max(nbytes, os.fstat(self.descriptor).st_size)
            os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
        return self._map

    def close(self) -> None:
        """Give the descriptor back; views stay good for as long as they are kept."""
        self._map = None
        os.close(self.descriptor)
