from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader

from loaders.base import Batch
from loaders.errors import LoaderConfigError, LoaderError, StreamError
from loaders.pipeline.image import ImageTransform
from loaders.streaming.torch_data import StreamDataset

pytestmark = pytest.mark.process

ALL = list(range(61))
ROOT = Path(__file__).parents[3]
STREAMING = ROOT / "docs/streaming.md"


def _dataset(endpoint: str, **changed: object) -> StreamDataset:
    arguments = {"transform": ImageTransform(size=8), "batch_size": 8, "seed": 5, "timeout_s": 20, "decode": "torch"}
    return StreamDataset(endpoint=endpoint, **(arguments | changed))


def _order(batches: Any) -> list[int]:
    """The ids of the samples of all batches, raw ones too, in their order."""
    return [i for batch in batches for i in (batch["ids"] if isinstance(batch, dict) else batch.ids).tolist()]


def _ids(batches: Any) -> list[int]:
    return sorted(_order(batches))


def test_every_iteration_of_a_dataloader_is_an_epoch_and_can_be_resumed(daemon) -> None:
    def loader(dataset: StreamDataset) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=None)

    quick = {"decode": "raw", "streams": 1, "warm_bytes": 0, "order": "strict"}
    with _dataset(daemon.endpoint, **quick) as dataset:
        assert len(dataset) == 8
        batches = loader(dataset)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of IterableDataset")
            whole = _order(batches)
        assert sorted(whole) == ALL and dataset.epoch == 1
        early = _order(islice(batches, 3))
        state = dataset.state_dict(taken=3)
        assert dataset.epoch == 1
        after = _order(batches)
        assert sorted(after) == ALL and dataset.epoch == 3
        assert len({tuple(part[:24]) for part in (whole, early, after)}) == 3
        assert dataset.state_dict(taken=8)["epoch"] == 3
        dataset.set_epoch(1)
        assert _order(batches)[:24] == early
    with _dataset(daemon.endpoint, **quick) as dataset:
        dataset.load_state_dict(state)
        batches = loader(dataset)
        rest = _order(batches)
        assert sorted(early + rest) == ALL and dataset.epoch == 2
        assert _order(batches) == after
        dataset.load_state_dict(state)
        assert _order(islice(batches, 2)) == rest[:16]
        again = dataset.state_dict(taken=2)
        dataset.load_state_dict(again)
        assert _order(batches) == rest[16:]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_dataloader_are_refused(daemon, start: str) -> None:
    with _dataset(daemon.endpoint, decode="raw") as dataset:
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=start)
        with pytest.raises(LoaderError, match="use DataLoader with num_workers=0"):
            next(iter(loader))
        assert _ids(dataset) == ALL and dataset.epoch == 1


def test_more_batches_than_were_taken_are_refused(daemon) -> None:
    with _dataset(daemon.endpoint, decode="raw") as dataset:
        with pytest.raises(LoaderConfigError, match="taken=1"):
            dataset.state_dict(taken=1)
        start = dataset.state_dict()
        assert _ids(dataset) == ALL
        with pytest.raises(LoaderConfigError, match=r"taken=9.*0.*8"):
            dataset.state_dict(taken=9)
        dataset.set_epoch(1)
        assert dataset.state_dict() == start | {"epoch": 1}


def test_a_daemon_that_is_gone_leaves_the_epoch_to_start_again(start_daemon: Callable[..., Any], shards: Path) -> None:
    daemon = start_daemon(shards)
    with _dataset(daemon.endpoint, decode="raw", timeout_s=0.5) as dataset:
        assert _ids(dataset) == ALL
        daemon.kill()
        with pytest.raises(StreamError):
            _ids(dataset)
        assert dataset.state_dict()["epoch"] == 1


def test_a_dataset_resumes_in_the_middle_and_at_an_epochs_end(daemon) -> None:
    with _dataset(daemon.endpoint) as dataset:
        list(dataset)
        between = dataset.state_dict()
        batches = iter(dataset)
        before = [next(batches) for _ in range(3)]
        middle = dataset.state_dict()
        for _ in range(5):
            next(batches)
        end = dataset.state_dict()  # before the loop knows that there is no more
    with _dataset(daemon.endpoint) as dataset:
        dataset.load_state_dict(middle)
        assert dataset.state_dict() == middle
        assert dataset.epoch == 1
        assert _ids([*before, *dataset]) == ALL
        assert dataset.epoch == 2
        dataset.load_state_dict(end)
        assert dataset.epoch == 2 and _ids(dataset) == ALL
        dataset.load_state_dict(between)
        assert dataset.epoch == 1 and _ids(dataset) == ALL


def test_datasets_of_other_ranks_go_on_where_all_were(daemon) -> None:
    def ranked(rank: int, world_size: int) -> StreamDataset:
        return _dataset(daemon.endpoint, rank=rank, world_size=world_size, remainder="uneven", decode="raw")

    given: list[int] = []
    states: list[dict[str, Any]] = []
    for rank, taken in ((0, 3), (1, 2), (2, 1)):  # all of epoch 1, and parts of it
        with ranked(rank, 3) as dataset:
            dataset.set_epoch(1)
            batches = iter(dataset)
            for _ in range(taken):
                given += next(batches).ids.tolist()
            states.append(dataset.state_dict())
    assert [state["epoch"] for state in states] == [2, 1, 1]
    before = list(given)
    again: list[dict[str, Any]] = []
    for rank in range(2):
        with ranked(rank, 2) as dataset:
            dataset.load_state_dict(states)
            assert dataset.epoch == 1
            again.append(dataset.state_dict())
            given += _ids(dataset)
            assert dataset.epoch == 2
            assert len(_ids(dataset)) in (30, 31)
    assert sorted(given) == ALL
    with ranked(0, 1) as dataset:
        dataset.load_state_dict(again)  # of ranks that had taken nothing of what was left yet
        assert sorted(_ids(dataset) + before) == ALL


def test_states_of_ranks_that_are_not_at_one_step_are_refused(daemon) -> None:
    with _dataset(daemon.endpoint, decode="raw", rank=0, world_size=2, remainder="drop") as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
        for states in ([], [{}], [state, {"epoch": 0, "loader": {}}]):
            with pytest.raises(LoaderConfigError):
                dataset.load_state_dict(states)


def test_ranks_come_from_torch_distributed(daemon, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with _dataset(daemon.endpoint) as dataset:
            assert _ids(dataset) == ALL
        with _dataset(daemon.endpoint, world_size=4) as dataset, pytest.raises(LoaderConfigError, match="remainder"):
            next(iter(dataset))
        with _dataset(daemon.endpoint, world_size=4, rank=3, remainder="drop") as dataset:
            assert len(_ids(dataset)) == 15 and len(dataset) == 2
    finally:
        torch.distributed.destroy_process_group()


RANK = """
import json, sys
import torch.distributed
from loaders.streaming import StreamDataset

if __name__ == "__main__":
    endpoint, store, rank, when = sys.argv[1:]

    def made():
        return StreamDataset(
            endpoint=endpoint, batch_size=4, seed=5, decode="raw", timeout_s=20, remainder="uneven", streams=1
        )

    early = made()
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    with early if when == "before" else made() as dataset:
        for _ in range(2):
            print(json.dumps([id for batch in dataset for id in batch.ids.tolist()]), flush=True)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_share_every_sample_if_made_before_or_after_the_process_group(daemon, tmp_path: Path, when: str) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    root = str(Path(__file__).parents[3])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), daemon.endpoint, str(tmp_path / "store"), str(rank), when],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=os.environ | {"PYTHONPATH": root},
        )
        for rank in range(2)
    ]
    said = []
    try:
        for process in ranks:
            said.append(process.communicate(timeout=200)[0].splitlines())
            assert process.returncode == 0
    finally:
        for process in ranks:
            process.kill()
    assert len(set(said[0])) == 2  # another epoch each
    for first, second in zip(*said, strict=True):
        shares = json.loads(first), json.loads(second)
        assert sorted(chain(*shares)) == ALL
        assert {len(share) for share in shares} == {30, 31}


def test_a_dataset_that_connected_as_another_rank_says_so(daemon, tmp_path: Path) -> None:
    with _dataset(daemon.endpoint) as dataset:
        dataset.loader  # noqa: B018 - connects as the only rank
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            assert _ids(dataset) == ALL
            dataset._place = (1, 2)
            with pytest.raises(LoaderError, match="rank 1 of 2"):
                next(iter(dataset))
        finally:
            torch.distributed.destroy_process_group()


def test_batches_are_plain_tensors_unless_told_otherwise(daemon) -> None:
    def first(**changed: object) -> Any:
        with _dataset(daemon.endpoint, order="strict", **changed) as dataset:
            return next(iter(DataLoader(dataset, batch_size=None)))

    batch, plain, (data, labels) = first(batches="batch"), first(), first(batches="tuple")
    assert isinstance(batch, Batch) and list(plain) == ["data", "labels", "ids"]
    assert torch.equal(batch.data, plain["data"]) and torch.equal(batch.data, data)
    assert torch.equal(batch.labels, plain["labels"]) and torch.equal(batch.labels, labels)
    assert plain["ids"].dtype == torch.int64 and plain["ids"].tolist() == batch.ids.tolist()
    with pytest.raises(LoaderConfigError, match="batches='list'"):
        _dataset(daemon.endpoint, batches="list")


NOTED = """
import json, runpy, sys
from loaders.streaming import torch_data

given, formed = [], torch_data._form_batch

def noted(batch, form):
    given.extend(batch.ids.tolist())
    return formed(batch, form)

torch_data._form_batch = noted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(json.dumps(given))
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_the_examples_of_the_frameworks_train_on_every_sample(daemon, tmp_path: Path, framework: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", STREAMING.read_text(), re.DOTALL)
    (text,) = (code for code in blocks if re.search(rf"^(import|from) {framework}\b", code, re.MULTILINE))
    (tmp_path / "train.py").write_text(text)
    checkpoint = [str(tmp_path / "checkpoint")] if framework == "accelerate" else []
    done = subprocess.run(
        [sys.executable, "-c", NOTED, str(tmp_path / "train.py"), daemon.endpoint, *checkpoint],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout.splitlines()[-1])
    assert sorted(given[:61]) == sorted(given[61:]) == ALL and given[:61] != given[61:]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The training script of docs/streaming.md, as a user would copy it."""
    section = STREAMING.read_text().partition("**4. Train.**")[2]
    text = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert len([line for line in text.splitlines() if line]) <= 32
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def _train(script: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def test_the_readmes_script_trains_and_resumes_and_uses_keys(
    daemon, start_daemon: Callable[..., Any], shards: Path, keys: Path, script: Path, tmp_path: Path
) -> None:
    state = tmp_path / "checkpoint.pt"
    first = _train(script, daemon.endpoint, state)
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0
    assert re.fullmatch(r"(epoch [012]: loss \d+\.\d{3}\n){3}", said)
    kept = torch.load(state)
    # As if it had ended after the second epoch.
    kept["data"]["epoch"] = 2
    kept["data"]["loader"] = {}
    torch.save(kept, state)
    keyed = start_daemon(shards, options=["--keys", str(keys / "daemon")])
    again = _train(script, keyed.endpoint, state, keys / "client")
    assert re.fullmatch(r"epoch 2: loss \d+\.\d{3}\n", again.communicate(timeout=120)[0])
    assert again.returncode == 0


def test_arguments_that_are_none_or_missing_are_named_where_the_dataset_is_made(daemon) -> None:
    given = {"endpoint": daemon.endpoint, "seed": 0}
    with pytest.raises(TypeError, match="batch_size"):
        StreamDataset(**given)
    with pytest.raises(TypeError, match="batchsize"):
        StreamDataset(**given, batch_size=4, batchsize=4)
    with pytest.raises(LoaderConfigError, match=r"batch_size=2\.5"):
        StreamDataset(**given, batch_size=2.5)
    with StreamDataset(**given, batch_size=4) as dataset, pytest.raises(LoaderConfigError, match=r"epoch=1\.5"):
        dataset.set_epoch(1.5)  # type: ignore[arg-type]
