"""What every loader of records has from RecordLoader, shown on one that reads shards from local files."""

from __future__ import annotations

import numpy as np
import pytest

from loaders import LoaderConfigError, StreamError


def test_raw_batches_are_the_records_themselves(table, datasets, serve, collect):
    data, entry = datasets["image"], table["records"]
    with entry.make(data, data.pipeline, serve(entry, data), decode="raw") as loader:
        batches = collect(loader, 0)
        assert loader.stats().samples == len(data.samples)
    for batch in batches:
        assert [bytes(image) for image in batch.images()] == [data.samples.read(k) for k in batch.ids.tolist()]
    with pytest.raises(LoaderConfigError, match="decode=raw"):
        entry.target.check_transform(data.pipeline, decode="raw")


def test_a_limit_leaves_the_samples_with_the_lowest_ids(table, datasets, serve, collect):
    data, entry = datasets["image"], table["records"]
    with entry.make(data, data.pipeline, serve(entry, data), limit=6) as loader:
        assert len(loader) == 6
        assert sorted(k for batch in collect(loader, 0) for k in batch.ids.tolist()) == list(range(6))


@pytest.mark.parametrize("decode", ["torch", "raw"])
@pytest.mark.parametrize("change", [-1, 3])
def test_an_epoch_of_too_few_or_too_many_samples_is_an_error(table, datasets, serve, collect, decode, change):
    data, entry = datasets["image"], table["records"]

    class Wrong(entry.target):
        def _start(self, epoch):
            fetch = super()._start(epoch)
            fetch._order = np.resize(fetch._order, len(self) + change)
            return fetch

    with (
        Wrong(endpoint=serve(entry, data), transform=data.pipeline, batch_size=4, seed=0, decode=decode) as loader,
        pytest.raises(StreamError, match=f"epoch 0 ended after {13 + change} samples, expected 13"),
    ):
        collect(loader, 0)
