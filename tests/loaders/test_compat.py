"""The private names of torch and DALI that the loaders use: an upgrade that takes one away fails here, by its name."""

from __future__ import annotations

import importlib
import inspect

import pytest

from loaders.shared import compat

USED = [
    ("torch._utils", "ExceptionWrapper.reraise"),
    ("torch.utils.data._utils.collate", "default_collate_fn_map"),
    ("torch.utils.data._utils.worker", "_worker_info"),
    ("torch.utils.data._utils.worker", "_generate_state"),
    ("torch.utils.data._utils.worker", "WorkerInfo"),
    ("torch.utils.data._utils.pin_memory", "pin_memory"),
    ("torch.utils.data.dataloader", "DataLoader._iterator"),
    ("torch.utils.data.dataloader", "DataLoader._get_iterator"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._reset"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter._next_data"),
    ("torch.utils.data.dataloader", "_SingleProcessDataLoaderIter"),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._shutdown_workers"),
    ("nvidia.dali.pipeline", "Pipeline._shutdown"),
]


@pytest.mark.parametrize(("module", "name"), USED, ids=[name for _, name in USED])
def test_a_private_name_is_still_there(module: str, name: str) -> None:
    found: object = importlib.import_module(module)
    for part in name.split("."):
        assert hasattr(found, part) or part in getattr(found, "__annotations__", {}), f"{module}.{name} is gone"
        found = getattr(found, part, None)


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [
        ("_MultiProcessingDataLoaderIter", "_workers"),
        ("_MultiProcessingDataLoaderIter", "_workers_done_event"),
        ("_BaseDataLoaderIter", "_sampler_iter"),
        ("_BaseDataLoaderIter", "_base_seed"),
        ("_BaseDataLoaderIter", "_persistent_workers"),
        ("_BaseDataLoaderIter", "_timeout"),
    ],
)
def test_a_private_attribute_is_still_set(owner: str, attribute: str) -> None:
    source = inspect.getsource(getattr(importlib.import_module("torch.utils.data.dataloader"), owner))
    assert f"self.{attribute} = " in source or f"self.{attribute}: " in source, f"{owner}.{attribute} is gone"


@pytest.mark.parametrize("words", [compat.TIMEOUT_PREFIX, compat.DEATH_PREFIX])
def test_an_error_that_is_known_by_its_words_still_has_them(words: str) -> None:
    dataloader = importlib.import_module("torch.utils.data.dataloader")
    handling = importlib.import_module("torch.utils.data._utils.signal_handling")
    sources = inspect.getsource(dataloader) + inspect.getsource(handling)
    # The death of a worker is told by torch's compiled part.
    compiled = words == compat.DEATH_PREFIX and "_error_if_any_worker_fails" in sources
    assert words in sources or compiled
