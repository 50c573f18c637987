import io
import json
import re
import stat

import numpy as np
import pytest
import soundfile

from harness.datasets.librispeech.generated import LibriSpeechLike, _bank
from harness.datasets.librispeech.tree import LibriSpeechTree
from harness.errors import DatasetError

pytestmark = pytest.mark.process

SAMPLES = 46
SMALL = LibriSpeechLike("speech", samples=SAMPLES, scale=0.05)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return SMALL.open(tmp_path_factory.mktemp("cache"), lambda *said: None)


@pytest.fixture
def corpus(made, tmp_path):
    """A tree of its own with two recordings of each of three chapters, and how they are opened."""
    root = tmp_path / "LibriSpeech" / "train-clean-100"
    chapters = {}
    for path in made.samples.paths:
        chapters.setdefault(path.rpartition("/")[0], []).append(path)
    for folder, paths in chapters.items():
        (root / folder).mkdir(parents=True)
        for path in paths[:2]:
            (root / path).write_bytes((made.samples.root / path).read_bytes())
        name = next((made.samples.root / folder).glob("*.trans.txt"))
        (root / folder / name.name).write_text("".join(name.read_text().splitlines(keepends=True)[:2]))
    return root


def opened(root, tmp_path, **options):
    return LibriSpeechTree("tree", str(root), **options).open(tmp_path / "cache", lambda *said: None)


def first_of(root):
    recording = min(root.rglob("*.flac"))
    return recording, next(recording.parent.glob("*.trans.txt"))


def test_the_layout_is_that_of_librispeech(made):
    root = made.samples.root
    assert list(made.samples.paths) == sorted(made.samples.paths, key=lambda path: (int(path.split("/")[0]), path))
    for path in made.samples.paths:
        assert re.fullmatch(r"(\d+)/(\d+)/\1-\2-\d{4}\.flac", path)
    lines = {}
    for file in root.rglob("*.trans.txt"):
        speaker, chapter = file.parts[-3:-1]
        assert file.name == f"{speaker}-{chapter}.trans.txt"
        lines |= dict(line.split(" ", 1) for line in file.read_text().splitlines())
    said = made.samples.columns["transcript"].to_pylist()
    assert [lines[path.rpartition("/")[2].removesuffix(".flac")] for path in made.samples.paths] == said
    assert all(re.fullmatch(r"[A-Z']+( [A-Z']+)*", text) for text in said)
    assert np.bincount(made.samples.labels).tolist() == [40, 6]
    json.dumps(made.describe)


def test_recordings_are_flac_of_16_khz_one_channel_and_16_bits_and_last_as_long_as_told(made):
    durations = made.samples.columns["duration_s"].to_pylist()
    for sample_id in range(SAMPLES):
        about = soundfile.info(str(made.samples.path(sample_id)))
        assert (about.format, about.subtype, about.samplerate, about.channels) == ("FLAC", "PCM_16", 16_000, 1)
        assert about.frames == round(durations[sample_id] * 16_000)
        assert made.samples.path(sample_id).stat().st_size == made.samples.sizes[sample_id]


def test_wanted_sizes_at_full_scale_are_the_published_ones():
    sizes = LibriSpeechLike("speech", 1000, 1.0).sizes
    assert sizes.min() >= 60_000
    assert sizes.max() <= 340_000
    assert sizes.mean() == pytest.approx(200_000, rel=0.01)
    assert np.quantile(sizes, 0.05) < 110_000 < 290_000 < np.quantile(sizes, 0.95)


def test_encoded_sizes_and_what_is_said_in_them_are_those_of_speech():
    recipe = LibriSpeechLike("speech", 60, 1.0, seed=3)
    total = pcm = characters = seconds = 0
    for sample_id in (0, 25, 59):
        ((_, content),) = recipe.files(sample_id)
        assert len(content) == pytest.approx(int(recipe.sizes[sample_id]), rel=0.08)
        wave, rate = soundfile.read(io.BytesIO(content), dtype="int16")
        total, pcm, seconds = total + len(content), pcm + wave.nbytes, seconds + len(wave) / rate
        characters += len(recipe.columns()["transcript"][sample_id].as_py())
        assert np.abs(wave.astype(int)).max() < 32_767
        # Pauses: a tenth of the time is much quieter than the loud half.
        level = np.sqrt((wave[: len(wave) // 320 * 320].astype(float).reshape(-1, 320) ** 2).mean(axis=1))
        assert np.quantile(level, 0.05) < 0.03 * np.quantile(level, 0.8)
    # LibriSpeech: 60 GB in 1 000 hours, of 16-bit samples at 16 kHz.
    assert total / pcm == pytest.approx(0.52, rel=0.06)
    assert 11 < characters / seconds < 17


def test_no_two_letters_sound_alike():
    power = np.abs(np.fft.rfft(_bank(), axis=1)) ** 2
    frequencies = np.fft.rfftfreq(_bank().shape[1], 1 / 16_000)
    middles = (power * frequencies).sum(axis=1)[1:] / power.sum(axis=1)[1:]  # the first is silence
    assert (np.diff(middles) > 0.05 * middles[:-1]).all()


def test_a_generated_tree_is_a_real_one_too(made, tmp_path):
    real = opened(made.samples.root, tmp_path)
    assert sorted(real.samples.paths) == sorted(made.samples.paths)
    order = [made.samples.paths.index(path) for path in real.samples.paths]
    for column in ("transcript", "duration_s"):
        expected = made.samples.columns[column].take(order).to_pylist()
        assert real.samples.columns[column].to_pylist() == pytest.approx(expected, abs=1e-4)
    assert real.samples.labels.tolist() == made.samples.labels[order].tolist()
    assert real.samples.sizes.tolist() == made.samples.sizes[order].tolist()
    assert real.describe["transcripts_without_recording"] == 0


def test_a_folder_above_subsets_will_do_and_other_files_are_passed_over(corpus, tmp_path):
    (corpus.parent / "SPEAKERS.TXT").write_text("; about")
    (corpus / "README").write_text("about")
    first = opened(corpus, tmp_path)
    above = opened(corpus.parent, tmp_path)
    assert above.samples.paths == tuple(f"train-clean-100/{path}" for path in first.samples.paths)
    assert above.samples.labels.tolist() == first.samples.labels.tolist()


def test_a_tree_is_judged_once_and_another_transcript_is_another_dataset(corpus, tmp_path, heard):
    first = opened(corpus, tmp_path)
    again = LibriSpeechTree("tree", str(corpus)).open(tmp_path / "cache", heard)
    assert again.content_hash == first.content_hash
    assert not [what for what, _, _ in heard if what.startswith("checking")]
    transcript = first_of(corpus)[1]
    transcript.write_text(transcript.read_text().replace(" ", " THE ", 1))
    assert opened(corpus, tmp_path).content_hash != first.content_hash


def rewrite(change):
    """Return what changes the text of transcripts."""
    return lambda recording, transcript: transcript.write_text(change(transcript.read_text(), recording.stem))


def sound(shape, rate=16_000, **options):
    """Return what stores silence in the place of a recording."""
    return lambda recording, _: soundfile.write(str(recording), np.zeros(shape, np.int16), rate, **options)


FAULTS = {
    r"has no transcript: \S+\.trans\.txt does not exist": lambda recording, transcript: transcript.unlink(),
    r"has no transcript: no line of \S+\.trans\.txt begins with \d+-": rewrite(lambda text, _: text.partition("\n")[2]),
    r"has an empty transcript in \S+\.trans\.txt": rewrite(lambda _, stem: f"{stem} \n"),
    r"has '[a-z]' in its transcript in \S+\.trans\.txt; expected upper-case": rewrite(lambda text, _: text.lower()),
    r"has no transcript: \S+\.trans\.txt is not UTF-8": lambda _, transcript: transcript.write_bytes(b"\xff\xfe"),
    "is empty": lambda recording, _: recording.write_bytes(b""),
    r"is truncated or no FLAC \(": lambda recording, _: recording.write_bytes(b"RIFF" + bytes(2000)),
    "is truncated": lambda recording, _: recording.write_bytes(recording.read_bytes()[:-1000]),
    "holds WAV, expected FLAC": sound(4000, format="WAV"),
    "has 2 channels, expected 1": sound((4000, 2)),
    "has 8000 samples per second, expected 16000": sound(4000, 8_000),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_recording_at_fault_is_named_or_left_out(reason, corpus, tmp_path):
    recording, transcript = first_of(corpus)
    FAULTS[reason](recording, transcript)
    path = str(recording.relative_to(corpus))
    with pytest.raises(DatasetError, match=reason) as error:
        opened(corpus, tmp_path)
    assert f"dataset.root={corpus}: {path} " in str(error.value)
    assert "dataset.on_error=skip" in str(error.value)
    kept = opened(corpus, tmp_path, on_error="skip")
    assert path in kept.skipped
    assert path not in kept.samples.paths
    assert len(kept.samples) + len(kept.skipped) == 6
    assert kept.describe["broken_or_without_transcript"] == len(kept.skipped)
    assert all(kept.samples.columns["transcript"].to_pylist())


def test_a_limit_takes_some_and_judges_only_these(corpus, tmp_path):
    chosen = opened(corpus, tmp_path, limit=2, seed=1)
    assert len(chosen.samples) == 2
    assert opened(corpus, tmp_path, limit=2, seed=1).samples.paths == chosen.samples.paths
    other = next(path for path in corpus.rglob("*.flac") if str(path.relative_to(corpus)) not in chosen.samples.paths)
    other.write_bytes(b"")
    assert opened(corpus, tmp_path, limit=2, seed=1).content_hash == chosen.content_hash


def test_a_transcript_without_its_recording_is_counted(corpus, tmp_path):
    first_of(corpus)[0].unlink()
    assert opened(corpus, tmp_path).describe["transcripts_without_recording"] == 1


def test_a_root_without_speech_is_named(tmp_path):
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(DatasetError, match=r"^dataset\.root=.*SPEAKER/CHAPTER/SPEAKER"):
        opened(tmp_path / "empty", tmp_path)
    with pytest.raises(DatasetError, match="SPEAKER/CHAPTER"):
        opened(tmp_path / "absent", tmp_path)


def test_an_unreadable_recording_is_named_and_judged_anew(corpus, tmp_path, unprivileged):
    for parent in corpus.parents:
        if not stat.S_IMODE(parent.stat().st_mode) & stat.S_IXOTH:
            parent.chmod(0o755)
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    recording, _ = first_of(corpus)
    recording.chmod(0)
    with unprivileged(), pytest.raises(DatasetError, match=recording.name):
        opened(corpus, tmp_path)
    recording.chmod(0o644)
    assert len(opened(corpus, tmp_path).samples) == 6
