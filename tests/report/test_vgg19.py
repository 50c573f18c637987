"""EMLIO's figure 9: which runs are held against it, what its text gives, and what is drawn and judged of it."""

import xml.etree.ElementTree as ET

import pytest

from harness.report.distance import choose_figure, read_paper_figure, sum_kj
from harness.report.render import read_report, render
from harness.results.reader import read_results

FIG5, FIG9, FIG10 = (read_paper_figure(f"emlio/fig{number}") for number in (5, 9, 10))


@pytest.fixture
def vgg19(build):
    """Makes a results folder of VGG-19, in the first repeat of another workload if one is given."""

    def make(other="vgg19", **options):
        builder = build(
            loaders=("dali", "streaming"), regimes=("lan_0_1ms", "lan_10ms", "wan_30ms"), repeats=2, **options
        )
        builder.config["workloads"] = {name: {"batch_size": 32} for name in ("vgg19", other)}
        builder.config["figures"] = ["emlio_fig9"]
        for entry in (*builder.cells.values(), *builder.rows.values()):
            entry["workload"] = "vgg19" if entry["repeat"] else other
        return builder.write()

    return make


def test_a_run_of_vgg19_alone_is_held_against_figure_9(vgg19):
    assert choose_figure(read_results(vgg19())) is FIG9


def test_a_run_that_has_resnet50_too_is_held_against_figure_5(vgg19):
    assert choose_figure(read_results(vgg19("resnet50"))) is FIG5


def test_a_run_with_half_of_its_data_local_is_held_against_figure_10(vgg19):
    assert choose_figure(read_results(vgg19(placement="half"))) is FIG10


def test_what_the_text_says_in_words_follows_from_its_numbers():
    """Section 5.1: 1 % faster at 0.1 ms; DALI 4.6 and 15 times as long at 10 and 30 ms, EMLIO 1.0 times."""
    dali, emlio = FIG9.epoch_s["dali"], FIG9.epoch_s["streaming"]
    assert 1 - emlio[0.1] / dali[0.1] == pytest.approx(0.01, abs=0.001)
    assert dali[10.0] / dali[0.1] == pytest.approx(4.6, abs=0.05)
    assert round(dali[30.0] / dali[0.1]) == 15
    assert all(emlio[rtt_ms] / emlio[0.1] == pytest.approx(1.0, abs=0.05) for rtt_ms in (10.0, 30.0))
    totals = [sum_kj(energy) for by_rtt in FIG9.energy_kj.values() for energy in by_rtt.values()]
    assert all(least == greatest for least, greatest in totals)


def test_the_figure_holds_the_papers_values_beside_ours(vgg19):
    folder = vgg19()
    render(read_report(folder))
    text = " ".join(ET.parse(folder / "figures/emlio_fig9.svg").getroot().itertext())
    for words in ("141", "2100", "DRAM joules", "14.7"):
        assert words in text
