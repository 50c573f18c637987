"""Computed tomography as the model takes it: Hounsfield units, clipped and normalised as MLPerf does it once for all.

The figures are those of MLPerf Training's image segmentation reference (preprocess_dataset.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

SPACING_MM: Final = (1.6, 1.2, 1.2)
"""Distance of voxels along depth, height and width in millimetres, to which every case is resampled."""
MIN_EDGE: Final = 128
"""Voxels below which an edge is padded."""

_MIN_HU: Final = -79.0
_MAX_HU: Final = 304.0
_MEAN_HU: Final = 101.0
_STD_HU: Final = 76.9


def normalise(hu: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Clip Hounsfield units to -79 to 304, subtract 101 and divide by 76.9, in place; any shape."""
    np.clip(hu, _MIN_HU, _MAX_HU, out=hu)
    hu -= np.float32(_MEAN_HU)
    hu /= np.float32(_STD_HU)
    return hu
