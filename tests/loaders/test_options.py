"""The arguments that loaders share: stated once, shown by every constructor, checked by name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import loaders
from loaders import LoaderConfigError, Samples
from loaders.sample_aware.options import PolicyOptions
from loaders.shared.options import LoaderOptions, Options

OF_FILES = ("DaliLoader", "PecanLoader", "PyTorchLoader", "SampleAwareLoader", "SizeBalancedLoader", "SpdlLoader")
POLICIES = ("SampleAwareDataLoader", "SampleAwareLoader")


@pytest.mark.parametrize(
    ("name", "options"), [*((name, LoaderOptions) for name in OF_FILES), *((name, PolicyOptions) for name in POLICIES)]
)
def test_a_constructor_shows_and_explains_every_argument(name: str, options: type[Options]) -> None:
    made = getattr(loaders, name)
    shown = inspect.signature(made).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    assert set(options.model_fields) <= set(shown)
    for argument in shown:
        assert f"{argument}: " in (made.__init__.__doc__ or ""), f"{name}: {argument} has no line"


@pytest.mark.parametrize("name", OF_FILES)
def test_an_argument_out_of_range_is_named(name: str, tmp_path: Any) -> None:
    (tmp_path / "one").write_bytes(b"1")
    samples = Samples(tmp_path, ("one",), *[np.zeros(1, np.int64)] * 2)
    common = {"samples": samples, "transform": loaders.ImageTransform(), "seed": 0}
    with pytest.raises(LoaderConfigError, match="batch_size=0"):
        getattr(loaders, name)(batch_size=0, **common)
    with pytest.raises(TypeError, match="workres"):
        getattr(loaders, name)(batch_size=1, workres=2, **common)
