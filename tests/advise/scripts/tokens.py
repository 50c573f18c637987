"""A training script as those of language models: tokens from a Parquet file, which memory holds."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, TOKENS = 128, 1000


class Tokens(Dataset):
    def __init__(self, path):
        flat = pq.read_table(path)["tokens"].combine_chunks().flatten()
        self.tokens = torch.from_numpy(flat.to_numpy().reshape(-1, LENGTH).astype(np.int64))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, place):
        row = self.tokens[place]
        return {"input_ids": row[:-1], "labels": row[1:]}


def main(path):
    if not path.exists():
        drawn = np.random.default_rng(0).integers(0, TOKENS, (4000, LENGTH), np.int32)
        pq.write_table(pa.table({"tokens": list(drawn)}), path)
    model = nn.Sequential(nn.Embedding(TOKENS, 256), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, TOKENS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        for batch in DataLoader(Tokens(path), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "tokens.parquet")
