"""Generated clips of video: to a loader what files of Kinetics are."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.imagenet_like import ClassFolders
from harness.datasets.pictures import patch, tinted
from harness.datasets.worker import Content
from harness.errors import DatasetError
from harness.system.values import check_count

_ROOM: Final = 64
"""Pixels by which the picture that a clip pans over is wider and higher than its frames."""
_FPS: Final = 25
_KEY_FRAMES: Final = 50
"""Frames from one that is coded by itself to the next."""
_FRAME_BYTES: Final = 2400
"""Of 340 x 256 pixels, about."""
_ENCODE_S: Final = 300.0
"""Longest time of one clip."""


@dataclass(frozen=True)
class Clips(ClassFolders):
    """H.264 in MP4 files, each a pan over a texture; Kinetics' own, as scaled for training, are 340 x 256 pixels."""

    version: ClassVar[int] = 1
    suffix: ClassVar[str] = ".mp4"

    samples: int = 200
    frames: int = 150
    width: int = 340
    height: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("dataset.frames", self.frames)
        for key in ("width", "height"):
            check_count(f"dataset.{key}", getattr(self, key), minimum=16)

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every sample of a set of `count`, shape (count,)."""
        return np.full(count, self.frames * _FRAME_BYTES * self.width * self.height // (340 * 256), np.int64)

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one sample's only file."""
        yield self.path(sample_id), self.clip(sample_id)

    def clip(self, sample_id: int) -> bytes:
        """Return one sample as an MP4 file; raises DatasetError where ffmpeg is missing or fails."""
        rng = np.random.default_rng([self.seed, 0xC1, sample_id])
        texture, x, y = rng.integers(0, 1 << 31, 3).tolist()
        right, down = rng.integers(1, 4, 2).tolist()
        picture = patch(self.seed, (texture, x, y), self.width + _ROOM, self.height + _ROOM)
        still = tinted(picture, int(rng.integers(-40, 41)), float(rng.random()), 24).convert("RGB")
        pan = f"crop={self.width}:{self.height}:x='mod(n*{right},{_ROOM})':y='mod(n*{down},{_ROOM})'"
        with tempfile.TemporaryDirectory() as folder:
            clip = Path(folder, "clip.mp4")
            argv = [
                *("ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-r", str(_FPS)),
                *("-s", f"{still.width}x{still.height}", "-i", "-", "-frames:v", str(self.frames)),
                *("-vf", f"loop=loop={self.frames}:size=1,setpts=N/{_FPS}/TB,{pan}", "-pix_fmt", "yuv420p"),
                # One thread, and no version of an encoder in the file: equal recipes make equal bytes.
                *("-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-g", str(_KEY_FRAMES)),
                *("-fflags", "+bitexact", "-flags:v", "+bitexact", "-map_metadata", "-1", str(clip)),
            ]
            try:
                subprocess.run(argv, input=still.tobytes(), capture_output=True, check=True, timeout=_ENCODE_S)
                return clip.read_bytes()
            except FileNotFoundError as error:
                raise DatasetError(f"{self.name}: ffmpeg is not installed; apt-get install ffmpeg") from error
            except subprocess.SubprocessError as error:
                said = bytes(getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
                raise DatasetError(
                    f"{self.name}: ffmpeg could not make {self.path(sample_id)}: {said or error}"
                ) from error
