"""What every generated dataset has in common: equal recipes make equal files, and wrong values are named."""

from dataclasses import replace

import pytest

from harness.datasets.coco import CocoLike
from harness.datasets.imagenet_like import ImagenetLike
from harness.datasets.kits19 import Kits19Like
from harness.datasets.librispeech.generated import LibriSpeechLike
from harness.errors import ConfigError

RECIPES = {
    "images": ImagenetLike("x", 8, 4, 20.0),
    "coco": CocoLike("x", 8, 0.02),
    "kits19": Kits19Like("x", 8, 0.001),
    "kits19 nifti": Kits19Like("x", 8, 0.001, "nifti"),
    "speech": LibriSpeechLike("x", 8, 0.05),
}


def content(recipe, sample_id):
    return [b"".join([parts] if isinstance(parts, bytes) else parts) for _, parts in recipe.files(sample_id)]


@pytest.mark.parametrize("name", RECIPES)
def test_equal_recipes_make_equal_files_and_another_seed_others(name):
    recipe = RECIPES[name]
    assert content(recipe, 3) == content(replace(recipe), 3)
    assert content(recipe, 3) not in (content(recipe, 4), content(replace(recipe, seed=1), 3))


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_and_the_version_of_a_recipe_are_part_of_its_key(name, monkeypatch):
    recipe = RECIPES[name]
    others = [{"seed": 1}, {"samples": 9}, {"mean_kb": 21.0} if name == "images" else {"scale": 0.1}]
    keys = {recipe.key(), *(replace(recipe, **one).key() for one in others)}
    monkeypatch.setattr(type(recipe), "version", type(recipe).version + 1)
    assert len({*keys, recipe.key()}) == 5


def test_datasets_of_different_kinds_have_different_keys():
    assert len({recipe.key() for recipe in RECIPES.values()}) == len(RECIPES)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *[(name, key, value) for name in RECIPES for key, value in (("samples", 0), ("seed", -1), ("name", "../up"))],
        *[("images", key, value) for key, value in (("samples", 2.5), ("classes", 25), ("mean_kb", float("nan")))],
        *[("images", "name", value) for value in ("", "a/b", ".hidden", None)],
        *[(name, "scale", value) for name in ("coco", "kits19", "speech") for value in (0, "1", float("nan"), 11)],
        ("kits19", "form", "dicom"),
    ],
)
def test_values_that_cannot_be_are_refused_by_their_key(name, key, value):
    with pytest.raises(ConfigError, match=rf"^dataset\.{key}="):
        replace(RECIPES[name], **{key: value})
