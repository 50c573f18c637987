from dataclasses import replace

import pytest

from harness.diagnose.figure import draw
from harness.diagnose.verdict import judge
from harness.report.claims.bound import find_knee

FLAT = {1: 0.36, 2: 0.58, 3: 0.59, 4: 0.60, 6: 0.59, 8: 0.60}


def test_the_knee_is_the_fewest_workers_that_do_nearly_as_well_as_any(points):
    assert find_knee({1: 0.357, 2: 0.709, 3: 0.986, 4: 0.99, 8: 0.986}) == 3
    assert find_knee({1: 0.96, 2: 1.0}) == 1
    assert find_knee({1: 0.2, 2: 0.4, 4: 0.8}) == 4


def test_loading_that_three_workers_hide_is_bound_by_the_accelerator(diagnosis):
    verdict = judge(diagnosis())
    assert (verdict.limit, verdict.knee, verdict.expected) == ("accelerator", 3, 3)
    assert "3 workers, decode" in verdict.headline
    assert verdict.changes[0].startswith("loader.num_workers=3")


def test_loading_that_one_worker_hides_needs_no_change(diagnosis, points):
    verdict = judge(diagnosis(load_s=0.008, points=points({1: 0.99, 2: 0.99})))
    assert (verdict.limit, verdict.knee, verdict.expected) == ("accelerator", 1, 1)
    assert "one worker" in verdict.headline
    assert verdict.changes[0].startswith("Nothing")


def test_utilisation_that_stops_rising_with_all_cores_busy_is_bound_by_cores(diagnosis, points):
    verdict = judge(diagnosis(points=points(FLAT, busy_cores=7.8)))
    assert (verdict.limit, verdict.knee) == ("cores", 2)
    assert "8 cores" in verdict.headline
    assert any("7.8 of 8 cores" in said for said in verdict.evidence)
    assert any("8 cores to itself: 3 " in said for said in verdict.changes)


def test_cores_that_are_too_few_are_counted(diagnosis, points):
    two = replace(diagnosis().machine, cores=2, host_cores=2)
    verdict = judge(diagnosis(machine=two, points=points(FLAT, busy_cores=1.95)))
    assert verdict.limit == "cores"
    assert any(
        "3 cores would feed it as it is (2 are here); on these, a batch may take 20.0 ms of processor time" in said
        for said in verdict.changes
    )


def test_a_busy_disk_before_idle_cores_is_bound_by_storage(diagnosis, points):
    verdict = judge(diagnosis(points=points(FLAT, busy_cores=1.0, disk_busy=0.97)))
    assert verdict.limit == "storage"
    assert any("97 % of the time, at 100 MB/s" in said for said in verdict.evidence)
    assert "loaders.streaming convert" in verdict.changes[0]


def test_waiting_in_reads_from_afar_is_bound_by_storage_too(diagnosis, points, stage):
    stages = (stage("read", 25, "read"), stage("decode", 3, "decode"))
    verdict = judge(diagnosis(stages=stages, points=points(FLAT, busy_cores=1.0, disk_busy=None)))
    assert (verdict.limit, verdict.stage.name) == ("storage", "read")


def test_a_step_that_never_waits_and_still_is_slow_is_not_starved(diagnosis, points):
    slowed = [replace(point, step_s=0.98 * point.step_every_s) for point in points({1: 0.7, 2: 0.6}, busy_cores=7.8)]
    verdict = judge(diagnosis(load_s=0.008, points=tuple(slowed)))
    assert (verdict.limit, verdict.knee) == ("step", 1)
    assert "starves" not in verdict.headline
    assert any("1.6 times t_compute" in said for said in verdict.evidence)


def test_waiting_with_cores_and_disk_idle_is_another_shared_resource(diagnosis, points):
    verdict = judge(diagnosis(points=points(FLAT, busy_cores=0.4)))
    assert verdict.limit == "other"
    assert "neither cores nor disk" in verdict.headline


def test_utilisation_that_still_rises_asks_for_more_workers(diagnosis, points):
    verdict = judge(diagnosis(load_s=0.16, points=points({1: 0.06, 2: 0.12, 4: 0.25, 8: 0.5}, busy_cores=3.0)))
    assert (verdict.limit, verdict.knee, verdict.expected) == ("workers", 8, 16)
    assert verdict.changes[0].startswith("loader.num_workers=16")


@pytest.mark.parametrize(
    ("own", "host", "disk", "limit"),
    [(2.0, 0.95, 0.0, "others"), (7.8, 1.0, 0.0, "cores"), (2.0, 0.6, 0.97, "storage"), (2.0, 0.4, 0.0, "other")],
)
def test_cores_that_other_programs_keep_busy_are_not_laid_to_the_loader(diagnosis, points, own, host, disk, limit):
    crowded = diagnosis(points=points(FLAT, busy_cores=own, host_busy=host, disk_busy=disk))
    verdict = judge(crowded)
    assert verdict.limit == limit
    assert ("Other programs kept 5.6 of 8 cores busy" in verdict.headline) == (limit == "others")
    assert ("starves" in verdict.headline) == (limit != "others")
    (title,) = (axes.get_title() for axes in draw(crowded).axes if "utilisation" in axes.get_ylabel())
    assert title == verdict.headline


def test_a_fed_accelerator_is_fed_though_other_programs_run(diagnosis, points):
    crowded = points({1: 0.4, 2: 0.8, 3: 0.98}, busy_cores=2.0, host_busy=0.75)
    verdict = judge(diagnosis(points=crowded))
    assert verdict.limit == "accelerator"
    assert "Other programs kept 4.0 of 8 cores busy" in verdict.headline


def test_reads_count_from_storage_only_where_memory_cannot_hold_the_files(diagnosis, stage):
    stages = (stage("read", 1, "read", cold_ms=40), stage("decode", 17, "decode", cold_ms=17))
    assert judge(diagnosis(stages=stages)).stage.name == "decode"
    small = replace(diagnosis().machine, free_bytes=60_000_000)
    verdict = judge(diagnosis(stages=stages, machine=small))
    assert verdict.stage.name == "read"
    assert any("memory cannot hold the files" in said for said in verdict.evidence)


def test_loads_that_stretch_with_workers_are_evidence_of_sharing(diagnosis, points):
    stretched = points({1: 0.36}) + points({8: 0.6}, busy_cores=7.8, load_ms=130)
    assert any("28.0 ms" in said and "130 ms" in said for said in judge(diagnosis(points=stretched)).evidence)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("read", "loaders.streaming convert"),
        ("decode", "loader=dali or loader=spdl"),
        ("augment", "Make slow cheaper"),
        ("collate", "cheaper layout of batches"),
        ("transfer", "loader=spdl: a batch is copied on a stream of its own"),
        ("hand-over", "loader=spdl"),
    ],
)
def test_the_advice_follows_the_slowest_stage(diagnosis, points, stage, kind, advice):
    verdict = judge(diagnosis(stages=(stage("slow", 20, kind),), points=points(FLAT, busy_cores=7.8)))
    assert any(advice in said for said in verdict.changes)


def test_native_loaders_are_not_told_to_become_native(diagnosis, points):
    subject = replace(diagnosis().subject, loader="dali", workers_key="num_threads", runs_pipeline=False)
    verdict = judge(diagnosis(subject=subject, points=points(FLAT, busy_cores=7.8)))
    assert not any("loader=dali" in said for said in verdict.changes)
    assert any(said.startswith("loader.num_threads=2") for said in verdict.changes)
