"""The states that a DataLoader's samplers draw from, kept when an epoch begins, so that it can be drawn again."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaders.errors import LoaderConfigError
from loaders.sample_aware.drop_in.keys import State
from loaders.sample_aware.ipc.messages import Value
from loaders.shared.compat import batch_sampler_of

_KNOWN: Final = (
    BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler,
    list, tuple, range,
)  # fmt: skip


def can_draw_again(loader: DataLoader[object]) -> bool:
    """Return whether the samplers draw the same again from the states of `sampler_states`: torch's own do."""
    return all(type(sampler) in _KNOWN or _is_stateful(sampler) for sampler in _samplers(loader))


def sampler_states(loader: DataLoader[object]) -> State:
    """Return the states of the generators, and of the samplers that have one; some kilobytes."""
    samplers = _samplers(loader)
    state: State = {
        "generators": [generator.get_state() for generator in _generators(loader)],
        "samplers": [sampler.state_dict() if _is_stateful(sampler) else None for sampler in samplers],
        "epochs": [sampler.epoch if isinstance(sampler, DistributedSampler) else None for sampler in samplers],
    }
    if not can_draw_again(loader):
        state["random"], state["numpy"] = random.getstate(), np.random.get_state(legacy=False)
    return state


def restore(loader: DataLoader[object], state: State, *, samplers: bool) -> None:
    """Put the generators, and the samplers if asked, where they were; raises LoaderConfigError for another loader's."""
    generators, found = _generators(loader), _samplers(loader)
    if len(generators) != len(state["generators"]) or len(found) != len(state["samplers"]):
        raise LoaderConfigError(
            f"state: it is of a loader with {len(state['generators'])} generators and {len(state['samplers'])} "
            f"samplers, and this one has {len(generators)} and {len(found)}; make the loader with the same arguments"
        )
    for generator, was in zip(generators, state["generators"], strict=True):
        generator.set_state(was)
    if "random" in state:
        random.setstate(state["random"])
        np.random.set_state(state["numpy"])
    if samplers:
        for sampler, was, epoch in zip(found, state["samplers"], state["epochs"], strict=True):
            if was is not None:
                sampler.load_state_dict(was)
            if epoch is not None:
                sampler.set_epoch(epoch)


def _samplers(loader: DataLoader[object]) -> list[Value]:
    outer = batch_sampler_of(loader)
    inner = getattr(outer, "sampler", None)
    return [outer] if inner is None else [outer, inner]


def _generators(loader: DataLoader[object]) -> list[torch.Generator]:
    found = [loader.generator]
    for sampler in _samplers(loader):
        if hasattr(sampler, "generator"):
            found.append(sampler.generator)
        elif type(sampler) not in _KNOWN:
            found.append(None)
    # None is torch's own generator.
    found = [torch.default_generator if generator is None else generator for generator in found]
    return list({id(generator): generator for generator in found if isinstance(generator, torch.Generator)}.values())


def _is_stateful(sampler: Value) -> bool:
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
