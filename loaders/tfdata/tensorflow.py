"""TensorFlow, imported where it is used and held to a few threads of the CPU."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from loaders.errors import LoaderConfigError

Dataset: TypeAlias = Any
"""A tf.data.Dataset."""
Element: TypeAlias = Sequence[Any]
"""The components of an element as NumPy arrays."""


@cache
def load_tensorflow(threads: int = 1) -> Any:
    """Return the module tensorflow with at most `threads` threads for an operation and twice as many for operations.

    The first call of a process decides. Raises LoaderConfigError where TensorFlow is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ImportError as error:
        raise LoaderConfigError(
            f"TensorFlow cannot be imported ({error}): run this with the Python that playbooks/tensorflow.sh prints"
        ) from error
    try:
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(2 * threads)
    except RuntimeError:
        pass  # TensorFlow was used in this process before, with the threads of then
    return tensorflow


class Take:
    """Takes element after element of a dataset; `cancel` ends a call that another thread is in."""

    def __init__(self, dataset: Dataset) -> None:
        """Start to iterate, which asks the service for a job."""
        # next() of an iterator cannot be cancelled, so its operation is executed here with a cancellation manager.
        from tensorflow.python.eager import cancellation, context, execute

        self._iterator = iter(dataset)
        self._manager = cancellation.CancellationManager()
        types, shapes = self._iterator._flat_output_types, self._iterator._flat_output_shapes
        self._execute: Callable[[Any], Any] = lambda iterator: execute.execute_with_cancellation(
            "IteratorGetNext",
            len(types),
            [iterator._iterator_resource],
            ("output_types", types, "output_shapes", shapes),
            context.context(),
            self._manager,
        )

    def __call__(self) -> Element:
        """Return the next element; raises tf.errors.OutOfRangeError at the end."""
        return [tensor.numpy() for tensor in self._execute(self._iterator)]

    def cancel(self) -> None:
        """Have the call under way, and every later one, raise tf.errors.CancelledError."""
        self._manager.start_cancel()

    def close(self, *, is_answered: bool) -> None:
        """Free the iterator, which releases it at the dispatcher too, where that answers.

        That call has no time limit and stops all Python threads, so without an answer the iterator is left in memory.
        """
        if not is_answered:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._iterator))
        self._iterator = None
