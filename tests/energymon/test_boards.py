"""Which boards a figure is of: what CUDA lets a program see, what is named, and boards in MIG mode."""

import json
import time

import pytest

from energymon import Agent, Meter, OptionError, Window
from energymon.sensors.boards import ALL, VISIBLE, Board, boards_of, choose_boards
from energymon.sensors.discover import SensorConfig, discover

INTERVAL_NS = 100_000_000
ALIKE = [Board(f"gpu-{i}", f"GPU-{i}{i}aa", "NVIDIA H100") for i in range(3)]
UNLIKE = [Board("gpu-0", "GPU-00aa", "NVIDIA T4"), Board("gpu-1", "GPU-11aa", "NVIDIA H100")]
SLICED = [ALIKE[0], Board("gpu-1", "GPU-11aa", "NVIDIA H100", ["MIG-5a", "MIG-5b"]), ALIKE[2]]
UNREAD = [ALIKE[0], Board("gpu-1")]


def choose(boards, named, choice=VISIBLE, **more):
    environment = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    found = choose_boards(choice, boards, environment | more)
    return None if found is None else sorted(found)


@pytest.mark.parametrize(
    ("boards", "named", "expected"),
    [
        (ALIKE, None, None),
        (ALIKE, "", []),
        (ALIKE, "-1", []),
        (ALIKE, "2", ["gpu-2"]),
        (ALIKE, " 2, 0", ["gpu-0", "gpu-2"]),
        (ALIKE, "2,-1,0", ["gpu-2"]),
        (ALIKE, "1,7,0", ["gpu-1"]),
        (ALIKE, "GPU-11aa,GPU-22", ["gpu-1", "gpu-2"]),
        (ALIKE, "GPU-99,0", []),
        (ALIKE, "GPU-,0", []),
        (SLICED, "MIG-5b", ["gpu-1"]),
        (SLICED, "MIG-GPU-11aa/7/0", ["gpu-1"]),
        (SLICED, "MIG-made-since", ["gpu-1"]),
        (UNLIKE, "GPU-11aa", ["gpu-1"]),
        (UNREAD, "1", ["gpu-1"]),
        ([Board("gpus")], "1", ["gpus"]),
        ([], "1", None),
    ],
)
def test_the_boards_that_cuda_lets_a_program_see_count(boards, named, expected):
    assert choose(boards, named) == expected


@pytest.mark.parametrize(
    ("boards", "named", "remedy"),
    [
        (UNLIKE, "1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        (ALIKE, "MIG-5b", "names none of gpu-0"),
        ([*ALIKE, Board("gpu-3", "GPU-00ab", "NVIDIA H100")], "GPU-00a", "names 2 of"),
        (UNREAD, "GPU-11aa", r"gpu-1 \(cannot be read\)"),
        ([ALIKE[0], ALIKE[1]._replace(is_sampled=False)], "1", "means gpu-1, which --boards left out"),
    ],
)
def test_a_name_whose_board_nobody_knows_is_refused(boards, named, remedy):
    with pytest.raises(OptionError, match=remedy):
        choose(boards, named)


def test_boards_of_several_models_have_the_order_that_the_bus_has_where_cuda_is_told_so():
    assert choose(UNLIKE, "1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["gpu-1"]


def test_boards_are_named_by_index_and_uuid_whatever_cuda_sees():
    assert choose(ALIKE, "0", ALL) is None
    assert choose(ALIKE, "0", "1,GPU-22") == ["gpu-1", "gpu-2"]
    with pytest.raises(OptionError, match="'7' names none of gpu-0"):
        choose(ALIKE, "0", "7")


@pytest.fixture
def config(boards, nvml_library, tmp_path):
    boards(3, watts={0: 100.0, 1: 200.0, 2: 400.0}, period_ms=dict.fromkeys(range(3), 5.0), mig=[2])
    return SensorConfig(sysfs=tmp_path, nvml=nvml_library)


def test_an_agent_samples_the_boards_that_it_is_told_to(config, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for choice, expected in ((ALL, [0, 1, 2]), (VISIBLE, [1]), ("GPU-00000000,2", [0, 2]), ("", [])):
        found = discover(SensorConfig(sysfs=config.sysfs, nvml=config.nvml, boards=choice), INTERVAL_NS, settles=False)
        assert [sensor.channels[0].device for sensor in found.sensors] == [f"gpu-{i}" for i in expected]
        found.close()


def test_a_board_in_mig_mode_is_measured_as_a_whole_and_its_slices_are_known(config):
    found = discover(config, INTERVAL_NS, settles=False)
    assert found.unreadable == {}
    (board,) = [b for b in boards_of({"sensors": [one.describe() for one in found.sensors]}) if b.slices is not None]
    assert board == Board("gpu-2", "GPU-00000002", "NVIDIA Fake", ["MIG-2-0", "MIG-2-1"])
    found.close()


@pytest.mark.parametrize(("named", "watts"), [(None, 700), ("1", 200), ("MIG-2-1", 400), ("0,GPU-00000001", 300)])
def test_a_window_counts_the_boards_that_its_program_can_see_and_says_so(config, monkeypatch, named, watts):
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with Meter(config=config) as meter:
        with Window(direct=meter) as window:
            time.sleep(0.1)
        assert abs(window.joules - watts * window.duration_s) <= window.error_j + 1e-3
        told = {event.kind: event.message for event in window.energy.events}
    assert ("boards" in told) == (named is not None)
    if named == "1":
        assert told["boards"] == "counted: gpu-1 (GPU-00000001); not counted: gpu-0, gpu-2"
    if named in (None, "MIG-2-1"):
        assert "gpu-2: whole board in MIG mode" in told["mig"]


@pytest.mark.process
def test_a_window_over_an_agent_counts_the_same_boards(config, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2-0,0")
    with Agent(options=["--sysfs", str(config.sysfs), "--nvml", str(config.nvml)]) as agent:
        windows = [Window(agent=agent), Window(agent=agent, boards="all")]
        for window in windows:
            with window:
                time.sleep(0.05)
        for window, watts, boards in zip(windows, (500, 700), ("gpu-0, gpu-2", "gpu-0, gpu-1, gpu-2"), strict=True):
            assert abs(window.joules - watts * window.duration_s) <= window.error_j + 1e-3
            assert ", ".join(one.device for one in window.energy.best) == boards
            assert "mig" in {event.kind for event in window.energy.events}


def test_a_window_names_the_board_that_its_program_sees_and_nobody_samples(config, monkeypatch):
    for seen, told in (("0", None), ("GPU-00000001", "CUDA_VISIBLE_DEVICES=GPU-00000001 means gpu-1, which")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        with Meter(config=config._replace(boards="0")) as meter:
            with Window(direct=meter) as window:
                time.sleep(0.02)
            assert boards_of(json.loads(json.dumps(meter.description)))[1:] == [
                Board("gpu-1", "GPU-00000001", "NVIDIA Fake", None, is_sampled=False),
                Board("gpu-2", "GPU-00000002", "NVIDIA Fake", ["MIG-2-0", "MIG-2-1"], is_sampled=False),
            ]
            if told is None:
                assert window.joules > 0
            else:
                with pytest.raises(OptionError, match=told):
                    assert window.joules


def test_a_program_that_sees_no_board_has_no_joules_of_one(config, monkeypatch, rapl):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with rapl.running(), Meter(config=SensorConfig(sysfs=rapl.root, nvml=config.nvml)) as meter:
        with Window(direct=meter) as window:
            time.sleep(0.05)
        assert set(window.by_domain) == {"cpu", "dram"}
        assert window.joules > 0
