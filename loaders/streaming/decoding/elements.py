"""Arrays that are stored as bare elements, their shape and dtype beside them: what `convert --from numpy` makes."""

from __future__ import annotations

import io

import numpy as np

from loaders.streaming.errors import ShardError
from loaders.streaming.shards.example import ExampleView

__all__ = ["is_bare", "npy_file"]


def is_bare(example: ExampleView, name: str) -> bool:
    """Return whether `name`/shape and `name`/dtype stand beside an array's elements."""
    return f"{name}/shape" in example and f"{name}/dtype" in example


def npy_file(example: ExampleView, name: str, elements: memoryview) -> memoryview:
    """Return an array's elements, C order and little-endian, as the .npy file that they were, which copies them once.

    Raises ShardError for a shape or dtype that is none.
    """
    shape, dtype = example[f"{name}/shape"], example[f"{name}/dtype"]
    try:
        (kind,) = dtype
        described = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(bytes(kind).decode()).newbyteorder("<")),  # type: ignore[arg-type]
            "fortran_order": False,
            "shape": tuple(int(length) for length in shape),
        }
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, described)
    except (TypeError, ValueError) as error:
        raise ShardError(f"tf.train.Example: {name}/shape {shape} or {name}/dtype {dtype} is none: {error}") from error
    return memoryview(head.getvalue() + elements)
