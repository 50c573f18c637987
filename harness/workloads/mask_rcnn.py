"""Object detection and segmentation with Mask R-CNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import CellError
from harness.system.values import check_choice, check_count

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.detection import DetectionPipeline


_BACKBONES: Final = ("resnet18", "resnet34", "resnet50", "resnet101")
_SHAPE: Final = 1333 / 800
"""Upper bound of the longer edge over the shorter one (torchvision's maskrcnn_resnet50_fpn)."""
_SMALLEST: Final = 32
"""Pixels of an edge below which the deepest level of the pyramid has nothing left."""
_LEVELS: Final = 5
"""Of a ResNet that can be trained, from its last."""


@dataclass(frozen=True, slots=True)
class MaskRCNN:
    """Training of Mask R-CNN (He et al., ICCV 2017) on a ResNet with a feature pyramid, torchvision's, from scratch.

    As in the object detection workload of MinatoLoader (section 2.2, Tables 1 and 3). The pipeline resizes and
    normalises, so the model does neither. `min_size`, `backbone`, `channels`, `proposals` and `trainable_layers`
    make it small.
    """

    batch_size: int = 48
    min_size: int = 800
    """Shorter edge of the pictures in pixels."""
    max_size: int | None = None
    """Upper bound of the longer edge in pixels; by default in proportion to 800 and 1333."""
    num_classes: int = 81
    """With the background."""
    backbone: str = "resnet50"
    trainable_layers: int = 5
    """Stages of the backbone that learn, from its last one; 5 is all of it."""
    channels: int = 256
    """Of the pyramid and the heads."""
    proposals: int = 512
    """Regions of each picture that the heads learn from."""
    name: str = "mask_rcnn"

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[int, int | None]] = {
            "batch_size": (1, None),
            "min_size": (_SMALLEST, None),
            "num_classes": (2, None),
            "trainable_layers": (0, _LEVELS),
            "channels": (1, None),
            "proposals": (4, None),
        }
        if self.max_size is not None:
            bounds["max_size"] = (self.min_size, None)
        for key, (minimum, maximum) in bounds.items():
            check_count(f"workloads.{self.name}.{key}", getattr(self, key), minimum=minimum, maximum=maximum)
        check_choice(f"workloads.{self.name}.backbone", self.backbone, _BACKBONES)

    @property
    def input_size(self) -> None:
        """None: pictures differ in width and height."""
        return None

    @property
    def transform(self) -> DetectionPipeline:
        """Resize, flip, tensor and normalisation, with masks."""
        from loaders.pipeline.detection import DetectionPipeline

        return DetectionPipeline(self.min_size, self._max_size)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torch import nn
        from torchvision.models import resnet
        from torchvision.models.detection import MaskRCNN as Model
        from torchvision.models.detection.backbone_utils import BackboneWithFPN
        from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
        from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

        body = getattr(resnet, self.backbone)(norm_layer=nn.BatchNorm2d)
        stages = [f"layer{number}" for number in range(1, 5)]
        learning = [*reversed(stages), "conv1", "bn1"][: self.trainable_layers + (self.trainable_layers == _LEVELS)]
        for name, weights in body.named_parameters():
            weights.requires_grad_(name.partition(".")[0] in learning)
        widths = [body.inplanes // 2**halvings for halvings in (3, 2, 1, 0)]
        returned = {stage: str(number) for number, stage in enumerate(stages)}
        pyramid, hidden = self.channels, 4 * self.channels
        model: nn.Module = Model(
            BackboneWithFPN(body, returned, widths, pyramid),
            min_size=self.min_size,
            max_size=self._max_size,
            image_mean=(0.0, 0.0, 0.0),
            image_std=(1.0, 1.0, 1.0),
            _skip_resize=True,
            rpn_pre_nms_top_n_train=4 * self.proposals,
            rpn_post_nms_top_n_train=4 * self.proposals,
            box_batch_size_per_image=self.proposals,
            # Of 256 channels these are the heads that torchvision makes by itself.
            box_head=TwoMLPHead(pyramid * 7 * 7, hidden),
            box_predictor=FastRCNNPredictor(hidden, self.num_classes),
            mask_head=MaskRCNNHeads(pyramid, (pyramid,) * 4, 1),
            mask_predictor=MaskRCNNPredictor(pyramid, pyramid, self.num_classes),
        )
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the sum of the model's losses: of its proposals, boxes, classes and masks."""
        pictures, targets = _unpadded(batch)
        losses: dict[str, torch.Tensor] = model(pictures, targets)
        total = sum(losses.values())
        assert not isinstance(total, int)
        return total

    def check(self, batch: Batch) -> None:
        """Raise CellError for a class that the model does not have, or for boxes without an area."""
        highest = int(batch.labels.max()) if len(batch.labels) else 0
        if highest >= self.num_classes:
            raise CellError(
                f"workload {self.name}: a box has class {highest}, and num_classes={self.num_classes}; "
                "set num_classes to one more than the dataset's classes"
            )
        boxes = batch.extra["boxes"]
        if bool((boxes[:, 2:] <= boxes[:, :2]).any()):
            raise CellError(f"workload {self.name}: a box of samples {batch.ids.tolist()} has no area")

    def example(self) -> Batch:
        """Return noise with one thing of class 1 in its middle."""
        import numpy as np
        import torch

        from loaders.base import Batch

        count, height, width = self.batch_size, self.min_size, self._max_size
        data = torch.randn((count, 3, height, width), generator=torch.Generator().manual_seed(0))
        box = torch.tensor([width // 4, height // 4, 3 * width // 4, 3 * height // 4], dtype=torch.float32)
        masks = torch.zeros(count, height, -(-width // 8), dtype=torch.uint8)
        masks[:, height // 4 : 3 * height // 4, width // 32 : 3 * width // 32] = 255
        extra = {
            "boxes": box.repeat(count, 1),
            "counts": torch.ones(count, dtype=torch.int64),
            "sizes": torch.tensor([[height, width]] * count),
            "masks": masks,
        }
        return Batch(np.arange(count), data, torch.ones(count, dtype=torch.int64), 0, extra)

    @property
    def _max_size(self) -> int:
        return round(self.min_size * _SHAPE) if self.max_size is None else self.max_size


def _unpadded(batch: Batch) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Return the pictures of a batch without their padding, and what each shows, as torchvision takes them."""
    import torch

    counts, sizes = batch.extra["counts"].tolist(), batch.extra["sizes"].tolist()
    pictures = [data[:, :height, :width] for data, (height, width) in zip(batch.data, sizes, strict=True)]
    boxes, labels, masks = (
        torch.split(each, counts) for each in (batch.extra["boxes"], batch.labels, batch.extra["masks"])
    )
    targets = [
        {"boxes": boxes[n], "labels": labels[n], "masks": _bits(masks[n], height, width)}
        for n, (height, width) in enumerate(sizes)
    ]
    return pictures, targets


def _bits(masks: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return masks of a byte a pixel, shape (k, height, width), from masks of a bit a pixel."""
    import torch

    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=masks.device)
    bits = (masks[:, :height, : -(-width // 8), None] >> places) & 1
    return bits.flatten(2)[:, :, :width]
