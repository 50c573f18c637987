import os
import stat
import threading
import time

import pytest

from harness.datasets.scan import in_threads
from harness.datasets.tree import ImageTree
from harness.errors import ConfigError, DatasetError


def opened(root, tmp_path, heard, **options):
    return ImageTree("tree", str(root), **options).open(tmp_path / "cache", heard)


def test_labels_follow_the_order_of_class_folders(tree, tmp_path, heard):
    handle = opened(tree, tmp_path, heard)
    assert handle.samples.paths == (
        "n01440764/n01440764_0.JPEG",
        "n01440764/n01440764_1.JPEG",
        "n01443537/n01443537_0.JPEG",
        "n01443537/n01443537_1.JPEG",
    )
    assert handle.samples.labels.tolist() == [0, 0, 1, 1]
    assert handle.samples.sizes.tolist() == [handle.samples.path(i).stat().st_size for i in range(4)]
    assert handle.skipped == ()


def test_a_tree_that_did_not_change_is_judged_once(tree, tmp_path, heard):
    first = opened(tree, tmp_path, heard)
    assert heard
    heard.clear()
    assert opened(tree, tmp_path, heard).content_hash == first.content_hash
    assert heard == []


def test_a_changed_file_is_judged_again_and_changes_the_hash(tree, tmp_path, heard, image):
    first = opened(tree, tmp_path, heard)
    (tree / "n01440764" / "n01440764_0.JPEG").write_bytes(image(seed=99))
    heard.clear()
    assert opened(tree, tmp_path, heard).content_hash != first.content_hash
    assert heard


def test_hidden_and_other_files_are_passed_over(tree, tmp_path, heard, image):
    (tree / "README.txt").write_text("about")
    (tree / ".DS_Store").write_bytes(b"x")
    (tree / ".cache").mkdir()
    (tree / ".cache" / "a.jpg").write_bytes(image())
    (tree / "n01440764" / "Thumbs.db").write_bytes(b"x")
    (tree / "n01440764" / "._n01440764_0.JPEG").write_bytes(b"resource fork")
    (tree / "n01440764" / "folder.jpg").mkdir()
    (tree / "empty").mkdir()
    os.mkfifo(tree / "n01440764" / "pipe.jpg")
    handle = opened(tree, tmp_path, heard)
    assert len(handle.samples) == 4
    assert handle.describe["classes"] == 2
    assert handle.describe["files_ignored"] == 3


def test_nested_folders_belong_to_their_class_and_links_in_a_circle_end(tree, tmp_path, heard, image):
    (tree / "n01443537" / "more").mkdir()
    (tree / "n01443537" / "more" / "z.PNG").write_bytes(image("PNG"))
    (tree / "n01443537" / "more" / "back").symlink_to(tree / "n01443537")
    handle = opened(tree, tmp_path, heard)
    assert handle.samples.labels[handle.samples.paths.index("n01443537/more/z.PNG")] == 1
    assert len(handle.samples) == 5


def broken_file(kind, image):
    whole = image(edge=96)
    return {
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "no end marker": whole[:-2],
        "truncated and padded": whole[: len(whole) // 2] + bytes(4096),
        "text": b"<html>404</html>",
        "truncated PNG": image("PNG")[:-20],
        "GIF": image("GIF", mode="L"),
        "only markers": b"\xff\xd8\xff\xd9",
    }[kind]


BROKEN = ["truncated", "empty", "no end marker", "truncated and padded", "text", "truncated PNG", "GIF", "only markers"]


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_or_left_out_and_reported(kind, tree, tmp_path, heard, image):
    whole = opened(tree, tmp_path, heard)
    (tree / "n01443537" / "bad.JPEG").write_bytes(broken_file(kind, image))
    with pytest.raises(DatasetError, match=r"n01443537/bad\.JPEG .*dataset\.on_error=skip"):
        opened(tree, tmp_path, heard)
    handle = opened(tree, tmp_path, heard, on_error="skip")
    assert handle.skipped == ("n01443537/bad.JPEG",)
    assert (handle.samples.paths, handle.content_hash) == (whole.samples.paths, whole.content_hash)


def test_all_broken_files_are_counted(tree, tmp_path, heard):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tree / "n01440764" / name).write_bytes(b"")
    with pytest.raises(DatasetError, match=r"n01440764/a\.jpg.*2.*7"):
        opened(tree, tmp_path, heard)


def test_a_tree_of_broken_files_alone_is_refused_even_with_skip(tmp_path, heard):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "x.jpg").write_bytes(b"")
    with pytest.raises(DatasetError, match="no sample is left"):
        opened(tmp_path / "train", tmp_path, heard, on_error="skip")


def test_a_link_to_nothing_is_a_broken_file(tree, tmp_path, heard):
    (tree / "n01440764" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert opened(tree, tmp_path, heard, on_error="skip").skipped == ("n01440764/gone.jpg",)


def test_a_name_that_is_not_utf8_is_a_broken_file(tree, tmp_path, heard, image):
    name = os.fsencode(tree / "n01440764") + b"/caf\xe9.jpg"
    with open(name, "wb") as file:  # noqa: PTH123 - Path takes no bytes
        file.write(image())
    assert opened(tree, tmp_path, heard, on_error="skip").skipped == (r"n01440764/caf\xe9.jpg",)


def test_a_file_that_cannot_be_read_is_broken_until_it_can(tree, tmp_path, heard, unprivileged):
    tmp_path.chmod(0o777)
    for folder in (tree, *tree.iterdir()):
        folder.chmod(0o755)
    for parent in tmp_path.parents:
        if not stat.S_IMODE(parent.stat().st_mode) & stat.S_IXOTH:
            parent.chmod(0o755)
    secret = tree / "n01440764" / "n01440764_0.JPEG"
    secret.chmod(0)
    with unprivileged():
        handle = opened(tree, tmp_path, heard, on_error="skip")
    assert handle.skipped == ("n01440764/n01440764_0.JPEG",)
    secret.chmod(0o644)
    assert opened(tree, tmp_path, heard).skipped == ()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: None, "does not exist"),
        (lambda root: root.mkdir(), "no images"),
        (lambda root: root.write_text("x"), "is a file"),
        (lambda root: (root / "class").mkdir(parents=True), "no images"),
    ],
    ids=["missing", "empty", "file", "empty class"],
)
def test_a_root_without_images_is_named_with_its_key(make, says, tmp_path, heard):
    root = tmp_path / "train"
    make(root)
    with pytest.raises(DatasetError, match=rf"^dataset\.root={root}: .*{says}.*class/name\.jpg"):
        opened(root, tmp_path, heard)


def test_images_outside_class_folders_are_explained(tmp_path, heard, image):
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(image())
    with pytest.raises(DatasetError):
        opened(tmp_path / "val", tmp_path, heard)


@pytest.mark.parametrize("which", ["root", "class folder"])
def test_an_unreadable_folder_is_named(which, tree, tmp_path, heard, unprivileged):
    for parent in (tree, *tmp_path.parents):
        if not stat.S_IMODE(parent.stat().st_mode) & stat.S_IXOTH:
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    closed = tree if which == "root" else tree / "n01443537"
    closed.chmod(0)
    try:
        with unprivileged(), pytest.raises(DatasetError, match=str(closed)):
            opened(tree, tmp_path, heard, on_error="skip")
    finally:
        closed.chmod(0o755)


def test_a_limit_takes_the_same_samples_every_time_and_judges_no_others(tree, tmp_path, heard):
    for k in range(20):
        (tree / "n01440764" / f"bad_{k}.jpg").write_bytes(b"")
    handle = opened(tree, tmp_path, heard, limit=3, on_error="skip", seed=5)
    assert len(handle.samples) + len(handle.skipped) == 3
    assert heard[-1][1:] == (3, 3)
    again = opened(tree, tmp_path, heard, limit=3, on_error="skip", seed=5)
    assert again.samples.paths == handle.samples.paths
    assert opened(tree, tmp_path, heard, limit=99, on_error="skip").describe["samples"] == 4


@pytest.mark.parametrize(
    ("key", "value"), [("root", ""), ("root", None), ("on_error", "ignore"), ("limit", 0), ("limit", "5")]
)
def test_values_that_cannot_be_are_refused_by_their_key(key, value):
    with pytest.raises(ConfigError, match=rf"^dataset\.{key}="):
        ImageTree(**{"name": "tree", "root": "/data", key: value})


def test_calls_wait_at_the_same_time():
    met = threading.Barrier(8, timeout=10)
    assert len(in_threads(lambda _: met.wait(), range(8))) == 8


@pytest.mark.parametrize("where", ["call", "listener"])
def test_what_is_raised_ends_it_and_calls_that_have_not_begun_are_dropped(where):
    begun = []

    def call(number):
        begun.append(number)
        time.sleep(0.001)
        if where == "call" and number == 3:
            raise OSError("gone")

    def listen(done):
        if where == "listener" and done == 3:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        in_threads(call, range(2_000), listen)
    assert len(begun) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-threads")]
