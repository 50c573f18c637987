"""A training script as those of speech: clips of many lengths, heavy augmentation, batches padded to their longest."""

import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

RATE = 16_000


class Speech(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, place):
        random = np.random.default_rng(place)
        wave = random.standard_normal(random.integers(RATE, 4 * RATE)).astype(np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * np.hanning(400)
        return torch.from_numpy(np.log1p(np.abs(np.fft.rfft(frames, 512)))).float()


def pad(clips):
    return torch.nn.utils.rnn.pad_sequence(clips, batch_first=True), torch.tensor([len(clip) for clip in clips])


if __name__ == "__main__":
    for _ in range(9):
        for features, lengths in DataLoader(Speech(), batch_size=8, shuffle=True, collate_fn=pad):
            assert features.shape[1] == lengths.max()
            time.sleep(0.02)
