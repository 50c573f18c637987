import gzip
import math
import os

import nibabel
import numpy as np
import pytest

from harness.datasets.kits19 import Kits19Like
from harness.datasets.kits19.tree import Kits19Tree
from harness.errors import DatasetError
from loaders.pipeline.volumes import normalise

pytestmark = pytest.mark.process

SCALE = 0.001


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same four cases in either form."""
    cache = tmp_path_factory.mktemp("kits19")
    return {form: Kits19Like("k", 4, SCALE, form).open(cache, quiet) for form in ("numpy", "nifti")}


@pytest.fixture
def tree(made, tmp_path):
    """Makes a real tree of a form that can be broken."""

    def copy(form):
        root = tmp_path / "kits19"
        source = made[form].samples.root
        for path in source.rglob("*.*"):
            target = root / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        return root

    return copy


def test_nibabel_reads_volumes_and_labels_with_millimetres(made):
    samples = made["nifti"].samples
    assert samples.paths[0] == "case_00000/imaging.nii.gz"
    for sample_id in range(len(samples)):
        image = nibabel.load(samples.path(sample_id))
        labels = nibabel.load(samples.root / str(samples.columns["label_path"][sample_id]))
        hu = image.get_fdata()
        assert image.get_data_dtype() == np.int16
        assert hu.min() < -900
        assert 300 < hu.max() <= 3071
        assert image.shape == labels.shape
        assert set(np.unique(labels.get_fdata())) == {0.0, 1.0, 2.0}
        assert np.allclose(image.affine, labels.affine)
        assert np.allclose(nibabel.affines.voxel_sizes(image.affine), (1.6, 1.2, 1.2))
        assert nibabel.aff2axcodes(image.affine) == ("I", "P", "L")


def test_the_numpy_form_is_the_same_volume_normalised_as_mlperf_does(made):
    arrays, images = made["numpy"].samples, made["nifti"].samples
    assert (arrays.paths[3], str(arrays.columns["label_path"][3])) == ("case_00003_x.npy", "case_00003_y.npy")
    for sample_id in range(4):
        volume = np.load(arrays.path(sample_id))
        labels = np.load(arrays.root / str(arrays.columns["label_path"][sample_id]))
        hu = np.asarray(nibabel.load(images.path(sample_id)).dataobj)
        assert (volume.dtype, labels.dtype) == (np.float32, np.uint8)
        assert volume.shape == labels.shape == (1, *hu.shape)
        assert np.array_equal(volume[0], normalise(hu.astype(np.float32)))
        assert volume.min() == pytest.approx((-79 - 101) / 76.9)
        assert arrays.sizes[sample_id] == volume.nbytes + labels.nbytes + 2 * 128


@pytest.mark.parametrize("samples", [20, 210])
def test_sizes_follow_the_published_distribution_times_the_scale(samples):
    full = Kits19Like("k", samples, 1.0, "numpy", seed=3).sizes_of(samples) / 1e6
    assert full.mean() == pytest.approx(136, rel=0.03)
    assert 29 < full.min() < 70
    assert 250 < full.max() < 376
    assert full.std() == pytest.approx(0.46 * 136, rel=0.2)
    assert Kits19Like("k", samples, 0.01, "numpy", seed=3).sizes_of(samples) / 1e6 == pytest.approx(full / 100, rel=0.1)


def test_whole_volumes_leave_room_for_the_models_cubes():
    assert all(min(shape) >= 127 for shape in Kits19Like("k", 210, 1.0, "numpy", seed=0).shapes)


@pytest.mark.parametrize("form", ["numpy", "nifti"])
def test_every_case_shows_kidneys_and_a_tumour_at_any_scale(form):
    for scale in (1e-4, 0.01):
        recipe = Kits19Like("k", 5, scale, form, seed=7)
        for sample_id in range(5):
            _, (_, labels) = [(path, b"".join(parts)) for path, parts in recipe.files(sample_id)]
            body = labels[128:] if form == "numpy" else gzip.decompress(labels)[352:]
            counts = np.bincount(np.frombuffer(body, np.uint8), minlength=3)
            assert len(counts) == 3
            assert counts.min() > 0
            assert counts[0] > 0.9 * math.prod(recipe.shapes[sample_id])


@pytest.mark.parametrize("form", ["numpy", "nifti"])
def test_a_real_tree_of_either_form_is_read(made, tree, heard, tmp_path, form):
    root = tree(form)
    (root / "README.md").write_text("a word of the user's own")
    handle = Kits19Tree("tree", str(root)).open(tmp_path, heard)
    assert handle.samples.paths == made[form].samples.paths
    assert handle.samples.sizes.tolist() == made[form].samples.sizes.tolist()
    assert handle.samples.columns["label_path"].equals(made[form].samples.columns["label_path"])
    assert handle.describe["form"] == form
    assert heard[-1] == ("checking tree", 4, 4)
    some = Kits19Tree("tree", str(root), limit=2, seed=1).open(tmp_path, heard)
    assert set(some.samples.paths) < set(handle.samples.paths)
    assert len(some.samples) == len(some.samples.columns["label_path"]) == 2
    assert some.content_hash != handle.content_hash


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def garbled(path):
    path.write_bytes(b"no header at all, but long enough for one" * 20)


def reshaped(path):
    if path.suffix == ".npy":
        np.save(path, np.load(path)[:, 1:])
    else:
        image = nibabel.load(path)
        nibabel.save(image.slicer[1:], path)


@pytest.mark.parametrize("form", ["numpy", "nifti"])
@pytest.mark.parametrize(
    ("which", "harm", "reason"),
    [
        ("labels", os.remove, "missing"),
        ("labels", lambda path: path.write_bytes(b""), "is empty"),
        ("labels", reshaped, "shape"),
        ("image", cut, "truncated"),
        ("image", garbled, "header"),
    ],
)
def test_a_broken_case_is_named_or_left_out(made, tree, tmp_path, heard, form, which, harm, reason):
    root, samples = tree(form), made[form].samples
    name = samples.paths[2] if which == "image" else str(samples.columns["label_path"][2])
    harm(root / name)
    with pytest.raises(DatasetError, match=rf"dataset\.root=.*{name}.* {reason}.*dataset\.on_error=skip"):
        Kits19Tree("tree", str(root)).open(tmp_path, heard)
    left = Kits19Tree("tree", str(root), on_error="skip").open(tmp_path, heard)
    assert left.skipped == (samples.paths[2],)
    assert left.samples.paths == tuple(path for path in samples.paths if path != samples.paths[2])


def test_arrays_of_another_type_are_named(tree, tmp_path, heard):
    root = tree("numpy")
    np.save(root / "case_00001_x.npy", np.load(root / "case_00001_x.npy").astype(np.float64))
    with pytest.raises(DatasetError, match=r"case_00001_x\.npy .*float64.*float32"):
        Kits19Tree("tree", str(root)).open(tmp_path, heard)


def test_the_challenges_test_cases_have_no_segmentation_and_are_passed_over(tree, tmp_path, heard):
    root = tree("nifti")
    (root / "case_00210").mkdir()
    (root / "case_00210" / "imaging.nii.gz").write_bytes((root / "case_00000" / "imaging.nii.gz").read_bytes())
    handle = Kits19Tree("tree", str(root)).open(tmp_path, heard)
    assert (len(handle.samples), handle.describe["cases_without_segmentation"], handle.skipped) == (4, 1, ())


def test_a_root_without_cases_says_what_it_holds_and_what_was_expected(tree, tmp_path, heard):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_bytes(b"sun")
    (tmp_path / "none").mkdir()
    (tmp_path / "file").write_text("")
    for name, says in (
        ("photos", r".*holiday\.jpg.*case_00000/"),
        ("none", "is empty"),
        ("file", "is a file"),
        ("nowhere", "does not exist"),
    ):
        with pytest.raises(DatasetError, match=rf"dataset\.root={tmp_path / name}: {says}"):
            Kits19Tree("tree", str(tmp_path / name)).open(tmp_path, heard)
    root = tree("nifti")
    np.save(root / "case_00009_x.npy", np.zeros(3))
    with pytest.raises(DatasetError, match="holds both forms"):
        Kits19Tree("tree", str(root)).open(tmp_path, heard)
