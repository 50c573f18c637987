"""The network of 3D-UNet as MLPerf trains it: encoder, bottleneck and decoder with skips, all convolutions of edge 3.

Layers, widths and the loss are as in MLPerf Training's image segmentation reference (model/unet3d.py,
model/layers.py, model/losses.py): instance norm with learned scale, ReLU, strided convolutions down, transposed ones
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import nn
from torch.nn import functional

_SMOOTH: Final = 1e-6
"""Keeps the overlap of a class that is neither there nor predicted at 1."""


class UNet(nn.Module):
    """Maps float (n, 1, S, S, S) to logits (n, classes, S, S, S); S is halved once a width, the bottleneck included."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        last = widths[-1]
        self.first = _two(1, widths[0], stride=1)
        self.down = nn.ModuleList(_two(a, b, stride=2) for a, b in [*pairwise(widths), (last, last)])
        steps = [(last, last), *((b, a) for a, b in reversed(list(pairwise(widths))))]
        self.up = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, stride=2) for a, b in steps)
        self.join = nn.ModuleList(_two(2 * b, b, stride=1) for _, b in steps)
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips), strict=True):
            x = join(torch.cat((up(x), skip), dim=1))
        logits: torch.Tensor = self.last(x)
        return logits


def dice_and_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean of cross entropy and of 1 - Dice's overlap, averaged over samples and foreground classes.

    `logits` is (n, classes, D, H, W), `labels` uint8 (n, 1, D, H, W).
    """
    logits = logits.float()  # sums over millions of voxels
    target = labels[:, 0].long()
    cross_entropy = functional.cross_entropy(logits, target)
    chance = logits.softmax(dim=1)[:, 1:]
    there = functional.one_hot(target, logits.shape[1]).movedim(-1, 1)[:, 1:].to(chance.dtype)
    space = (2, 3, 4)
    both = (chance * there).sum(space)
    overlap = (2 * both + _SMOOTH) / (chance.sum(space) + there.sum(space) + _SMOOTH)
    return (cross_entropy + (1 - overlap).mean()) / 2


def _two(width_in: int, width_out: int, *, stride: int) -> nn.Sequential:
    """Return two convolutions, each with norm and ReLU; the first one shrinks."""
    layers: list[nn.Module] = []
    for given, step in ((width_in, stride), (width_out, 1)):
        layers += [
            nn.Conv3d(given, width_out, 3, stride=step, padding=1, bias=False),
            nn.InstanceNorm3d(width_out, affine=True),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)
