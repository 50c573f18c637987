"""A training script as those of ImageNet: many small files in folders of classes, decoded and cropped, a quick step."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Folder(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*/*.jpg"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, place):
        image = Image.open(self.files[place]).convert("RGB").resize((160, 160))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255), place % 10


def main(root):
    if not root.exists():
        random = np.random.default_rng(0)
        for place in range(1000):
            (root / str(place % 10)).mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).resize((400, 400)).save(root / str(place % 10) / f"{place}.jpg")
    for _ in range(50):
        for images, _labels in DataLoader(Folder(root), batch_size=16, shuffle=True):
            assert images.shape[1:] == (3, 160, 160)
            time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "images")
