"""COCO's layout: what is made up is valid for its own reader, and a real tree is read with all its faults."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from harness.datasets.coco import CocoLike, CocoTree
from harness.datasets.coco.annotations import CATEGORY_IDS
from harness.datasets.coco.generated import ANNOTATIONS
from harness.datasets.pictures import patch
from harness.errors import ConfigError, DatasetError

pytestmark = pytest.mark.process

RECIPE = CocoLike("coco", samples=40, scale=0.02, seed=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A made-up set of 40 small pictures."""
    return RECIPE.open(tmp_path_factory.mktemp("made"), lambda *_: None)


@pytest.fixture(scope="module")
def official(made):
    """The same set as pycocotools reads it."""
    return COCO(str(made.samples.root / ANNOTATIONS))


@pytest.fixture
def tree(made, tmp_path):
    """A copy of five pictures that show things, and their annotations, to be broken."""
    content = json.loads((made.samples.root / ANNOTATIONS).read_bytes())
    shown = {entry["image_id"] for entry in content["annotations"] if not entry["iscrowd"]}
    content["images"] = [one for one in content["images"] if one["id"] in shown][:5]
    kept = {one["id"] for one in content["images"]}
    content["annotations"] = [
        entry for entry in content["annotations"] if entry["image_id"] in kept and not entry["iscrowd"]
    ]
    (tmp_path / "coco" / "train2017").mkdir(parents=True)
    for one in content["images"]:
        path = f"train2017/{one['file_name']}"
        shutil.copyfile(made.samples.root / path, tmp_path / "coco" / path)
    return Broken(tmp_path, content)


class Broken:
    """A tree in COCO's layout whose annotations a test changes before it is opened."""

    def __init__(self, folder, content):
        self.folder, self.root, self.content = folder, folder / "coco", content

    @property
    def first(self):
        """The first annotation, of the first picture that has one."""
        return self.content["annotations"][0]

    def image(self, entry):
        return next(one for one in self.content["images"] if one["id"] == entry["image_id"])

    def path(self, entry):
        return f"train2017/{self.image(entry)['file_name']}"

    def opened(self, **options):
        (self.root / "annotations").mkdir(exist_ok=True)
        (self.root / ANNOTATIONS).write_text(json.dumps(self.content))
        return CocoTree("tree", str(self.root), **options).open(self.folder / "cache", lambda *_: None)


def test_pycocotools_reads_the_annotations_and_finds_every_picture(made, official):
    assert sorted(official.getCatIds()) == list(CATEGORY_IDS)
    assert len(CATEGORY_IDS) == 80
    assert len(official.getImgIds()) == len(made.samples) == 40
    for image in official.loadImgs(official.getImgIds()):
        with Image.open(made.samples.root / "train2017" / image["file_name"]) as picture:
            assert (picture.format, picture.size) == ("JPEG", (image["width"], image["height"]))


def test_boxes_areas_and_outlines_agree_with_the_masks_that_pycocotools_draws(official):
    entries = official.loadAnns(official.getAnnIds(iscrowd=False))
    assert len(entries) > 100
    for entry in entries:
        x, y, width, height = entry["bbox"]
        image = official.loadImgs(entry["image_id"])[0]
        assert 0 <= x < x + width <= image["width"] + 0.01
        assert 0 <= y < y + height <= image["height"] + 0.01
        if entry["area"] > 200:
            mask = official.annToMask(entry)
            assert mask.sum() == pytest.approx(entry["area"], rel=0.1)
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            assert (columns[0], rows[0]) == pytest.approx((x, y), abs=1.5)
            assert (columns[-1] + 1, rows[-1] + 1) == pytest.approx((x + width, y + height), abs=1.5)


def test_things_are_as_many_and_as_large_as_cocos():
    # 7.3 things of a picture, 41 % of them below 32 x 32 pixels and 24 % above 96 x 96, on pictures of 640 x 480.
    pictures = [CocoLike("coco", samples=1000, scale=0.2).picture(number) for number in range(1000)]
    assert np.mean([len(picture.outlines) for picture in pictures]) == pytest.approx(6.9, rel=0.1)
    assert 0 < sum(not picture.categories for picture in pictures) < 30
    sides = np.array(
        [
            np.sqrt(np.prod(np.ptp(outline, axis=0)) * 0.785 / (picture.width * picture.height) * 640 * 480)
            for picture in pictures
            for outline in picture.outlines
        ]
    )
    assert (sides < 32).mean() == pytest.approx(0.41, abs=0.04)
    assert (sides > 96).mean() == pytest.approx(0.24, abs=0.04)
    kinds = np.bincount([kind for picture in pictures for kind in picture.categories])
    assert len(kinds[kinds > 0]) == 80


def test_files_have_the_published_sizes_times_the_scale():
    published = CocoLike("coco", samples=4000, scale=1.0).sizes / 1e6
    assert published.mean() == pytest.approx(0.8, rel=0.01)
    assert (published.min(), published.max()) == pytest.approx((0.1, 1.0), abs=0.1)
    halved = CocoLike("coco", samples=4000, scale=0.5).sizes / 1e6
    assert halved == pytest.approx(published / 2, abs=1e-6)


def test_files_are_about_as_large_as_wanted(made):
    wanted = RECIPE.sizes
    assert made.samples.sizes.sum() == pytest.approx(wanted.sum(), rel=0.05)
    assert np.abs(made.samples.sizes / wanted - 1).max() < 0.25


def test_things_are_painted_where_the_annotations_say_and_nowhere_else():
    number = int(np.argmax([len(RECIPE.picture(n).outlines) for n in range(40)]))
    picture = RECIPE.picture(number)
    assert len(picture.outlines) > 10
    at = np.random.default_rng([RECIPE.seed, 0xC0FE, number]).integers(0, 1 << 31, 3).tolist()
    bare = patch(RECIPE.seed, at, picture.width, picture.height)
    changed = (np.asarray(RECIPE.drawn(number)) != np.asarray(bare)).any(-1)
    coco = COCO()
    coco.dataset = RECIPE.annotations
    coco.createIndex()
    masks = [coco.annToMask(entry) for entry in coco.loadAnns(coco.getAnnIds(imgIds=number + 1))]
    assert len(masks) == len(picture.outlines)
    inside = np.any(masks, axis=0)
    edge = np.zeros_like(inside)
    for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)):
        edge |= np.roll(inside, (dy, dx), (0, 1)) != inside
    assert changed[inside & ~edge].mean() > 0.97
    assert not changed[~inside & ~edge].any()


def test_the_adapter_reads_a_made_up_tree_as_the_generator_describes_it(made, tmp_path):
    found = CocoTree("tree", str(made.samples.root)).open(tmp_path, lambda *_: None)
    assert found.samples.paths == made.samples.paths
    assert found.samples.sizes.tolist() == made.samples.sizes.tolist()
    assert found.samples.labels.tolist() == made.samples.labels.tolist()
    assert {name: column.equals(made.samples.columns[name]) for name, column in found.samples.columns.items()} == {
        "boxes": True,
        "categories": True,
        "segments": True,
    }
    assert found.skipped == ()


@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_a_picture_at_fault_is_named_or_left_out(tree, fault):
    path = tree.path(tree.first)
    whole = (tree.root / path).read_bytes()
    (tree.root / path).unlink()
    if fault == "broken":
        (tree.root / path).write_bytes(whole[:700])
    with pytest.raises(DatasetError, match=rf"{path} .*on_error=skip"):
        tree.opened()
    handle = tree.opened(on_error="skip")
    assert (handle.describe[fault], handle.skipped, len(handle.samples)) == (1, (path,), 4)
    assert path not in handle.samples.paths


def test_pictures_without_boxes_are_kept_or_left_out_as_asked(tree):
    bare = tree.first["image_id"]
    tree.content["annotations"] = [one for one in tree.content["annotations"] if one["image_id"] != bare]
    kept = tree.opened()
    assert (kept.describe["without_boxes"], kept.describe["without_boxes_are"]) == (1, "kept")
    assert 0 in kept.samples.labels
    assert kept.samples.columns["boxes"][kept.samples.labels.tolist().index(0)].as_py() == []
    fewer = tree.opened(without_boxes="leave_out")
    assert (fewer.describe["without_boxes"], fewer.describe["without_boxes_are"]) == (1, "left out")
    assert len(fewer.samples) == 4
    assert fewer.content_hash != kept.content_hash


def test_crowds_boxes_outside_and_boxes_of_no_area_are_left_out_and_counted(tree):
    before = sum(map(len, tree.opened().samples.columns["boxes"].to_pylist()))
    size = tree.image(tree.first)
    tree.content["annotations"] += [
        {**tree.first, "iscrowd": 1, "segmentation": {"counts": [5, 5], "size": [1, 10]}},
        {**tree.first, "bbox": [size["width"] + 5, 0, 10, 10]},
        {**tree.first, "bbox": [3, 3, 0, 7]},
        {**tree.first, "bbox": [-5, -5, 20, 20]},
    ]
    handle = tree.opened()
    assert [handle.describe[key] for key in ("crowds", "boxes_dropped", "boxes_cut")] == [1, 2, 1]
    boxes = handle.samples.columns["boxes"].to_pylist()
    assert sum(map(len, boxes)) == before + 1
    assert [0.0, 0.0, 15.0, 15.0] in boxes[handle.samples.paths.index(tree.path(tree.first))]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"category_id": 12}, "category 12"),
        ({"bbox": [1, 2, 3]}, r"\[1, 2, 3\]"),
        ({"bbox": [1, 2, float("nan"), 4]}, "nan"),
        ({"bbox": None}, "NoneType"),
        ({"segmentation": [[1, 2, 3, 4]]}, r"corners"),
        ({"segmentation": {"counts": [1], "size": [1, 1]}}, "run lengths"),
    ],
)
def test_a_malformed_annotation_is_named_or_its_picture_left_out(tree, change, told):
    tree.first.update(change)
    number, entry = tree.first["image_id"], tree.first["id"]
    with pytest.raises(DatasetError, match=rf"image {number} of instances.*\({entry}\) .*{told}"):
        tree.opened()
    handle = tree.opened(on_error="skip")
    assert (handle.describe["wrongly_described"], len(handle.samples)) == (1, 4)
    assert handle.skipped == (f"image {number} of instances_train2017.json",)


def test_an_annotation_of_no_picture_and_a_name_that_leads_out_of_its_folder_are_named(tree):
    tree.content["annotations"].append({**tree.first, "image_id": 777})
    with pytest.raises(DatasetError, match=r"image 777 .*`images`"):
        tree.opened()
    assert len(tree.opened(on_error="skip").samples) == 5
    del tree.content["annotations"][-1]
    tree.image(tree.first)["file_name"] = "../../etc/passwd"
    with pytest.raises(DatasetError, match=r"\.\./\.\./etc/passwd"):
        tree.opened()


@pytest.mark.parametrize("content", ["{", "[]", '{"images": [], "annotations": 3}', '{"images": [{"id": 1}]}'])
def test_a_file_that_is_no_annotation_file_is_named(tree, content):
    (tree.root / "annotations").mkdir()
    (tree.root / ANNOTATIONS).write_text(content)
    with pytest.raises(DatasetError, match=r"instances_train2017\.json"):
        CocoTree("tree", str(tree.root)).open(tree.folder / "cache", lambda *_: None)


def test_other_annotation_files_are_found_or_chosen(tree):
    tree.opened()
    folder = tree.root / "annotations"
    (tree.root / "train2017").rename(tree.root / "val2017")
    (tree.root / ANNOTATIONS).rename(folder / "instances_val2017.json")
    only = CocoTree("tree", str(tree.root)).open(tree.folder / "cache", lambda *_: None)
    assert only.samples.paths[0].startswith("val2017/")
    shutil.copyfile(folder / "instances_val2017.json", folder / "instances_minival.json")
    with pytest.raises(DatasetError, match=r"instances_minival\.json, .*dataset\.tree\.annotations"):
        CocoTree("tree", str(tree.root)).open(tree.folder / "cache", lambda *_: None)
    chosen = CocoTree("tree", str(tree.root), annotations="annotations/instances_val2017.json")
    assert len(chosen.open(tree.folder / "cache", lambda *_: None).samples) == 5


def test_a_root_without_annotations_says_what_is_expected(tmp_path):
    with pytest.raises(DatasetError, match=r"instances_train2017\.json"):
        CocoTree("tree", str(tmp_path)).open(tmp_path / "cache", lambda *_: None)
    with pytest.raises(DatasetError, match="COCO"):
        CocoTree("tree", str(tmp_path / "none")).open(tmp_path / "cache", lambda *_: None)
    with pytest.raises(ConfigError, match=r"^dataset\.without_boxes="):
        CocoTree("tree", str(tmp_path), without_boxes="no")
