"""NIfTI volumes become what MLPerf's preprocessing makes of them."""

import nibabel
import numpy as np
import pytest

from loaders.pipeline import UndecodableError
from loaders.pipeline.volumes import NiftiFiles, resample, unpack


@pytest.fixture
def packed(tmp_path):
    """Makes the compressed bytes of a case."""

    def make(image, labels, spacing=(1.6, 1.2, 1.2), **kinds):
        files = []
        for name, volume in (("i", image), ("l", labels)):
            affine = np.diag([*spacing, 1.0])
            nibabel.save(
                nibabel.Nifti1Image(volume.astype(kinds.get(name, volume.dtype)), affine), tmp_path / f"{name}.nii.gz"
            )
            files.append((tmp_path / f"{name}.nii.gz").read_bytes())
        return NiftiFiles(*files)

    return make


def test_values_are_clipped_and_normalised_and_keep_their_places(packed):
    image = np.random.default_rng(0).integers(-1024, 1500, (5, 6, 7)).astype(np.int16)
    labels = (np.arange(210).reshape(5, 6, 7) % 3).astype(np.uint8)
    volume, found = unpack(packed(image, labels), "case_00000")
    assert (volume.shape, volume.dtype, found.dtype) == ((1, 5, 6, 7), np.float32, np.uint8)
    assert volume.flags.c_contiguous
    assert volume[0] == pytest.approx((np.clip(image, -79, 304) - 101) / 76.9, abs=1e-5)
    assert np.array_equal(found[0], labels)


@pytest.mark.parametrize("kind", [np.int16, np.float32, np.float64])
def test_any_type_of_stored_values_will_do(packed, kind):
    image = np.full((3, 4, 5), 101)
    volume, _ = unpack(packed(image, np.zeros((3, 4, 5), np.uint16), i=kind), "case")
    assert volume == pytest.approx(np.zeros((1, 3, 4, 5)))


def test_another_spacing_is_resampled_with_its_ends_kept_and_labels_not_blended():
    ramp = np.linspace(0, 90, 10, dtype=np.float32)[:, None, None].repeat(6, 1).repeat(6, 2)
    labels = np.zeros((10, 6, 6), np.uint8)
    labels[5:] = 2
    volume, found = resample(ramp, labels, (3.2, 0.6, 1.2))
    assert volume.shape == found.shape == (20, 3, 6)
    assert volume[:, 0, 0] == pytest.approx(np.linspace(0, 90, 20), abs=1e-3)
    assert np.unique(found).tolist() == [0, 2]
    assert (found == 2).mean() == 0.5


def test_what_is_no_whole_case_is_named(packed):
    labels = np.zeros((3, 4, 5), np.uint8)
    good = packed(np.zeros((3, 4, 5), np.int16), labels)
    for bad, says in (
        (NiftiFiles(good.image[:-20], good.labels), "case's image"),
        (NiftiFiles(good.image, b"text"), "case's segmentation"),
        (packed(np.zeros((3, 4, 6), np.int16), labels), r"\(3, 4, 6\).*\(3, 4, 5\)"),
        (packed(np.zeros((3, 4, 5, 2), np.int16), labels), "4 axes"),
    ):
        with pytest.raises(UndecodableError, match=says):
            unpack(bad, "case")
