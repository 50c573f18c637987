"""What follows from probes: limits, other numbers of readers, the order of choices, and when to leave a loader."""

from dataclasses import replace

import pytest

from harness.advise.model import MOST_READERS, Candidate, Findings, Place, ProbedEpoch, suggest_readers
from harness.advise.question import Choice

FAR = Place(cores=2, rate_bytes=125e6, rtt_s=0.03, batches=100, step_s=0.035)
NEAR = replace(FAR, rate_bytes=None, rtt_s=0.0)


def candidate(batch_s, *, choice=None, readers=4, cpu_s=0.01, repeats=1, joules=30.0, rss=1e9, rx=1e5):
    rest_s = 20 * batch_s if batch_s < 1.1 * FAR.step_s else 19 * batch_s + 2 * FAR.step_s
    probe = ProbedEpoch(20, 0.5 + rest_s, 0.5, 20 * cpu_s, 20 * rx, rss, joules, is_estimate=True)
    return Candidate(choice or Choice("pytorch"), (probe,) * repeats, readers)


def findings(*candidates, in_use="pytorch", **more):
    given = {"subject": "a model", "command": "", "objective": "time", "place": FAR} | more
    by_key = {one.choice.key: one for one in candidates}
    return Findings(in_use=Choice(in_use), paste=lambda choice: [choice.key], candidates=by_key, **given)


@pytest.mark.parametrize(
    ("batch_s", "more", "limit"),
    [(0.036, {}, "step"), (0.3, {}, "readers"), (0.1, {"cpu_s": 0.19}, "processors"), (0.1, {"rx": 12e6}, "link")],
)
def test_what_is_used_up_is_the_limit(batch_s, more, limit):
    assert candidate(batch_s, **more).limit(FAR) == limit


def test_round_trips_are_divided_by_the_files_that_are_read_at_once_until_something_else_is_used_up():
    far = candidate(0.35)
    assert far.with_readers(Choice("pytorch"), 8, FAR).batch_s(FAR) == pytest.approx(0.175)
    assert far.with_readers(Choice("pytorch"), 400, FAR).batch_s(FAR) == pytest.approx(FAR.step_s)
    enough, between = suggest_readers(far, FAR)
    assert enough == 40  # 4 readers take ten steps
    assert 4 < between < enough
    assert suggest_readers(candidate(3.5), FAR)[0] == MOST_READERS


def test_where_processors_or_the_step_are_used_up_fewer_readers_are_tried():
    assert suggest_readers(candidate(0.1, cpu_s=0.19, readers=8), NEAR) == [2, 3]
    assert suggest_readers(candidate(0.035, readers=8), NEAR) == [2]
    assert suggest_readers(candidate(0.035, readers=8), replace(NEAR, cores=16)) == [4]
    assert suggest_readers(candidate(0.035, readers=16), FAR) == [8]
    assert suggest_readers(candidate(0.035, readers=1), NEAR) == []
    assert suggest_readers(candidate(0.3, readers=None), FAR) == []


def test_an_epoch_is_its_first_batch_all_others_and_two_steps_with_an_interval_that_repeats_make_narrower():
    once, often, near = candidate(0.1), candidate(0.1, repeats=9), replace(FAR, rtt_s=0.0)
    assert once.epoch_s(FAR).value == pytest.approx(0.5 + 99 * 0.1 + 2 * 0.035)
    assert once.epoch_s(FAR).low < often.epoch_s(FAR).low < often.epoch_s(FAR).high < once.epoch_s(FAR).high
    assert once.joules(FAR).value == pytest.approx(30 / 2.47 * 10.47)
    assert candidate(0.1, joules=None).joules(FAR) is None
    assert candidate(0.035, repeats=9).error(near, 0.015) < often.error(near, 0.015) / 2  # the step bounds it


def test_workers_that_make_whole_batches_bring_them_in_rounds():
    # 16 workers make 20 batches in two rounds, the second one of a quarter of them: as 26 of whole ones; then 5 steps.
    probe = ProbedEpoch(20, 2.0 + 5 * FAR.step_s, 1.0, 0.2, 0.0, 1e9, None, is_estimate=False)
    found = Candidate(Choice("pytorch"), (probe,), 16, whole_batches=True)
    assert found.batch_s(FAR) == pytest.approx(2.0 / 26)
    assert found.epoch_s(FAR).value == pytest.approx(2.0 * 106 / 26 + 5 * FAR.step_s)  # 100 batches
    at_step = replace(found, probes=(replace(probe, batches=16, first_s=0.4, epoch_s=0.4 + 16 * FAR.step_s),))
    assert at_step.epoch_s(FAR).value == pytest.approx(0.4 + 100 * FAR.step_s)
    busy = Candidate(Choice("pytorch"), (replace(probe, cpu_s=3.9),), 16, whole_batches=True)
    assert busy.epoch_s(FAR).value == pytest.approx(10.0 + 25 * FAR.step_s)
    more = found.with_readers(Choice("pytorch"), 20, FAR)
    assert more.epoch_s(FAR).value == pytest.approx(2.0 / 26 * 16 / 20 * 100 + 21 * FAR.step_s)  # whole rounds
    short = replace(found, probes=(replace(probe, batches=8, epoch_s=2.0 + 9 * FAR.step_s),))  # of half the workers
    assert short.epoch_s(FAR).value == pytest.approx(2.0 / 8 * 100 + 9 * FAR.step_s)
    amid, kept = replace(probe, batches=11, first_s=0.0), findings()
    for one in (replace(probe, batches=5), amid, replace(amid, batches=12)):
        kept.take(Choice("pytorch"), 16, [one])
    assert [one.batches for one in kept.incumbent.probes] == [11, 12]  # as of scripts, which end by time
    assert kept.incumbent.shortness == 1.0 < short.shortness
    assert not kept.incumbent.is_short


def test_the_start_of_an_epoch_of_busy_workers_is_none_of_its_batches():
    # Two processors make a batch in 0.1 s; four workers bring the first at 0.7 s and the last at 2.3.
    probe = ProbedEpoch(20, 2.3 + 5 * NEAR.step_s, 0.7, 4.0, 0.0, 1e9, None, is_estimate=False)
    found = Candidate(Choice("pytorch"), (probe,), 4, whole_batches=True)
    assert found.limit(NEAR) == "processors"
    assert found.epoch_s(NEAR).value == pytest.approx(0.3 + 100 * 0.1 + 5 * NEAR.step_s)


def test_what_a_loader_received_before_an_epoch_is_not_of_its_time():
    # Five of 20 batches of 0.1 s were there, and so many are left at its end, beside the step that is on.
    probe = ProbedEpoch(20, 1.5 + 6 * FAR.step_s, 0.0, 0.2, 0.0, 1e9, None, is_estimate=False, ahead=5.0)
    assert Candidate(Choice("streaming"), (probe,), None).epoch_s(FAR).value == pytest.approx(9.5 + 6 * FAR.step_s)
    assert Candidate(Choice("streaming"), (replace(probe, epoch_s=0.7),), None).epoch_s(FAR).value == pytest.approx(3.5)


def test_the_best_choice_is_that_of_the_objective_and_of_the_memory():
    quick = candidate(0.1, choice=Choice("dali"), joules=90.0, rss=4e9)
    frugal = candidate(0.12, choice=Choice("spdl"), joules=20.0)
    assert findings(quick, frugal).ranked == [quick, frugal]
    assert findings(quick, frugal, objective="joules").ranked == [frugal, quick]
    assert findings(quick, frugal, max_rss_gb=2).ranked == [frugal]


def test_a_gain_that_chance_explains_is_none_and_without_a_probe_of_the_loader_in_use_nothing_is_said():
    now = candidate(0.2)
    assert findings(now, candidate(0.195, choice=Choice("dali"))).decide() == "leave it"
    assert findings(now, candidate(0.1, choice=Choice("dali"))).decide() == "change"
    assert findings(now, candidate(0.3, choice=Choice("dali"))).decide() == "leave it"
    assert findings(candidate(0.1, choice=Choice("dali"))).decide() == "cannot say"
    assert findings(now, place=replace(FAR, step_s=0.0)).decide() == "cannot say"
    alone, beside = findings(now), findings(now, candidate(0.3, choice=Choice("dali")))
    assert (alone.decide(), beside.decide()) == ("leave it", "leave it")
    alone.spoiled["spdl"] = beside.spoiled["spdl"] = "other programs used 0.6 processors"
    assert (alone.decide(), beside.decide()) == ("cannot say", "leave it")


def test_a_loader_that_needs_more_memory_than_there_may_be_is_changed():
    fits = candidate(0.3, choice=Choice("dali"))
    assert findings(candidate(0.2, rss=4e9), fits, max_rss_gb=2).decide() == "change"


def test_only_what_may_be_better_than_the_best_is_derived():
    slow, best = candidate(0.35), candidate(0.05, choice=Choice("streaming"), readers=None)
    derived = findings(slow, best).derive(lambda _: "num_workers")
    assert [one.arguments["num_workers"] for one in derived] == [40]


def test_a_choice_that_follows_from_two_candidates_is_derived_once():
    four = candidate(0.1, cpu_s=0.19)
    two = candidate(0.1, cpu_s=0.19, readers=2, choice=Choice("pytorch", {"num_workers": 2}))
    (derived,) = findings(four, two, place=NEAR).derive(lambda _: "num_workers")
    assert derived.arguments == {"num_workers": 3}


def test_in_another_place_the_limit_is_another_one():
    far = candidate(0.3)
    assert far.elsewhere(FAR, replace(FAR, rtt_s=0.06)).batch_s(FAR) == pytest.approx(0.6)
    busy = candidate(0.1, cpu_s=0.19)
    assert busy.elsewhere(NEAR, replace(NEAR, cores=4)).batch_s(NEAR) == pytest.approx(0.05, rel=0.1)
    assert replace(busy, readers=1).elsewhere(NEAR, replace(NEAR, cores=4)).batch_s(NEAR) == pytest.approx(0.1, rel=0.1)
    half = replace(NEAR, step_s=0.0175)
    assert candidate(0.035).elsewhere(NEAR, half).batch_s(half) == pytest.approx(0.0175)
