"""COCO's 80 kinds of things: numbers from 1 to 90 with gaps, names, and the groups that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["CATEGORY_IDS", "described"]

_GROUPS: Final[Mapping[str, Mapping[int, str]]] = {
    "person": {1: "person"},
    "vehicle": {
        2: "bicycle",
        3: "car",
        4: "motorcycle",
        5: "airplane",
        6: "bus",
        7: "train",
        8: "truck",
        9: "boat",
    },
    "outdoor": {10: "traffic light", 11: "fire hydrant", 13: "stop sign", 14: "parking meter", 15: "bench"},
    "animal": {
        16: "bird",
        17: "cat",
        18: "dog",
        19: "horse",
        20: "sheep",
        21: "cow",
        22: "elephant",
        23: "bear",
        24: "zebra",
        25: "giraffe",
    },
    "accessory": {27: "backpack", 28: "umbrella", 31: "handbag", 32: "tie", 33: "suitcase"},
    "sports": {
        34: "frisbee",
        35: "skis",
        36: "snowboard",
        37: "sports ball",
        38: "kite",
        39: "baseball bat",
        40: "baseball glove",
        41: "skateboard",
        42: "surfboard",
        43: "tennis racket",
    },
    "kitchen": {44: "bottle", 46: "wine glass", 47: "cup", 48: "fork", 49: "knife", 50: "spoon", 51: "bowl"},
    "food": {
        52: "banana",
        53: "apple",
        54: "sandwich",
        55: "orange",
        56: "broccoli",
        57: "carrot",
        58: "hot dog",
        59: "pizza",
        60: "donut",
        61: "cake",
    },
    "furniture": {62: "chair", 63: "couch", 64: "potted plant", 65: "bed", 67: "dining table", 70: "toilet"},
    "electronic": {72: "tv", 73: "laptop", 74: "mouse", 75: "remote", 76: "keyboard", 77: "cell phone"},
    "appliance": {78: "microwave", 79: "oven", 80: "toaster", 81: "sink", 82: "refrigerator"},
    "indoor": {
        84: "book",
        85: "clock",
        86: "vase",
        87: "scissors",
        88: "teddy bear",
        89: "hair drier",
        90: "toothbrush",
    },
}
"""Lin et al., Microsoft COCO, 2014, and `categories` of instances_train2017.json."""

CATEGORY_IDS: Final = tuple(sorted(number for members in _GROUPS.values() for number in members))
"""The numbers in use; a model's class is a position here plus 1, 0 being the background."""


def described() -> list[dict[str, Any]]:
    """Return the list `categories` of an annotation file."""
    listed = [
        {"supercategory": group, "id": number, "name": name}
        for group, members in _GROUPS.items()
        for number, name in members.items()
    ]
    return sorted(listed, key=lambda category: int(str(category["id"])))
