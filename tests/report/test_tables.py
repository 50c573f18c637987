import io
import json

import pandas as pd
import pytest
from rich.console import Console

from harness.report import print_report, read_report, render
from harness.report.claims import NOT_CHECKED, group_unchecked
from harness.report.costs import make_cost_table
from harness.report.labels import joules
from harness.report.remarks import write_headline
from harness.report.summary import summarise
from harness.results.reader import read_results


def printed(folder, width=80):
    stream = io.StringIO()
    print_report(read_report(folder), Console(file=stream, width=width))
    return stream.getvalue()


def words_of(text, start):
    """Return the words of the only line that starts with these."""
    words = start.split()
    (line,) = [line.split() for line in text.splitlines() if line.split()[: len(words)] == words]
    return line


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_fits_and_no_figure_is_cut(build, width):
    text = printed(build(regimes=("local", "lan_0_1ms", "lan_10ms", "wan_30ms")).write(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


@pytest.mark.parametrize("width", [30, 50, 64, 74, 79])
def test_a_narrow_terminal_has_fewer_columns_and_no_figure_cut(build, width):
    builder = build(regimes=("local", "lan_0_1ms", "lan_10ms", "wan_30ms"))
    for cell_id in builder.ids(loader="dali"):
        builder.invalidate(cell_id, "spread", "< 10 %", "14 %")
    text = printed(builder.write(), width)
    assert "…" not in text
    line = words_of(text, "30 ms PyTorch")
    assert line[:5] == ["30", "ms", "PyTorch", "14.5", "s"]
    assert line[-3:] == ["3", "of", "3"]
    assert ("ratio: to" in " ".join(text.split())) == (width >= 64)


def test_medians_spreads_ratios_and_verdicts_are_told(build):
    text = printed(build(scatter=0.0).write())
    line = words_of(text, "30 ms PyTorch")
    assert " ".join(line) == "30 ms PyTorch 14.8 s 0 % 8.43× ±0 % 117 J 0 % 8.43× 3 of 3"


def test_joules_of_an_emulated_board_are_in_no_median_ratio_or_bar(build):
    """They are its power over the epoch's time, and would hide what the hosts drew."""
    builder = build(scatter=0.0)
    folder = builder.write()
    row = builder.rows[builder.ids(loader="pytorch", regime="wan_30ms")[0]]
    text = printed(folder)
    assert "without those of the emulated board" in " ".join(text.split())
    assert words_of(text, "PyTorch, 30 ms")[-2:] == joules(row["gpu_j"]).split(), "in a column of its own"
    (group,) = [one for one in summarise(read_results(folder)) if (one.loader, one.regime) == ("pytorch", "wan_30ms")]
    assert group.drawn_j.median == row["cpu_j"] and group.domain_j == {"cpu": row["cpu_j"]}


def test_joules_of_a_real_board_count(build):
    builder = build(scatter=0.0, energy_source="cpu=estimate;gpu=nvml-counter", accelerator="cuda: NVIDIA A100")
    groups = summarise(read_results(builder.write()))
    assert [group.drawn_j.median for group in groups[:1]] == [builder.rows[builder.ids()[0]]["total_j"]]


def test_claims_that_were_not_checked_are_a_line_a_reason(build):
    folder = build(repeats=1).write()
    text = printed(folder, 120)
    report = read_report(folder)
    reasons = group_unchecked(report.claims)
    assert sum(map(len, reasons.values())) == sum(one.verdict == NOT_CHECKED for one in report.claims) > len(reasons)
    below = text.partition("Claims not checked, by reason\n")[2].splitlines()
    assert below[0].split(None, 1)[0] == str(len(next(iter(reasons.values()))))
    render(report)
    page = (folder / "report.html").read_text()
    assert page.count(" not checked <span>") == len(reasons)
    assert '<td class="verdict dim">NOT CHECKED' not in page


def test_a_row_shows_the_smallest_difference_in_time_that_its_repeats_can_show(build):
    folder = build(scatter=0.02).write()
    text = printed(folder, width=100)
    (least,) = [word for word in words_of(text, "30 ms PyTorch") if word.startswith("±")]
    assert 0.5 < float(least.removeprefix("±")) < 30
    assert "±: the smallest difference in time that the repeats can show" in " ".join(text.split())
    render(read_report(folder))
    assert f", {least} %</small>" in (folder / "report.html").read_text().replace("\u00a0", " ")
    assert "±" not in printed(build(repeats=1).write(), width=100)


def test_an_estimate_is_labelled_in_the_table_itself(build):
    assert "estimate" in words_of(printed(build().write()), "regime loader")


def test_a_measured_energy_is_not_called_an_estimate(build):
    text = printed(build(energy_source="cpu=rapl-powercap;dram=rapl-powercap;gpu=nvml-counter").write())
    assert "estimate" not in text
    assert "gpu from nvml-counter" in " ".join(text.split())


def test_energy_of_mixed_sources_is_labelled_where_it_is_estimated(build):
    builder = build()
    for cell_id in builder.ids(loader="dali"):
        builder.rows[cell_id]["energy_source"] = "cpu=rapl-powercap;gpu=nvml-counter"
    lines = [line for line in printed(builder.write()).splitlines() if " of 3" in line]
    assert [("DALI" in line, "est." in line) for line in lines] == [(False, True), (True, False), (False, True)] * 2


def test_failures_are_listed_with_their_reason(build):
    builder = build()
    builder.fail(builder.ids(loader="dali", regime="wan_30ms")[1], "SampleError: sample 211: truncated JPEG")
    text = printed(builder.write())
    assert "17 of 18 epochs valid, 1 of 18 cells without a result" in text
    assert "failed DALI, 30 ms: SampleError: sample 211: truncated JPEG" in " ".join(text.split())


def test_invalid_medians_are_marked(build):
    builder = build()
    for cell_id in builder.ids():
        builder.invalidate(cell_id, "spread", "< 10 %", "14 %")
    text = printed(builder.write())
    assert "0 of 3 †" in text
    assert "†: no valid row" in " ".join(text.split())


def test_a_ratio_to_a_loader_without_a_valid_row_is_marked_and_dim(build):
    builder = build(scatter=0.0)
    for cell_id in builder.ids(loader="streaming", regime="wan_30ms"):
        builder.invalidate(cell_id, "others cpu", "≤ 10 %", "14 %")
    folder = builder.write()
    text = printed(folder)
    assert [word for word in words_of(text, "30 ms PyTorch") if "×" in word] == ["8.43×†", "8.43×†"]
    assert "†" not in " ".join(words_of(text, "0.1 ms PyTorch"))
    render(read_report(folder))
    page = (folder / "report.html").read_text()
    assert page.count('<td class="num dim">8.43×†') == 2
    assert '<td class="num">1.00×<' in page, "PyTorch to streaming at 0.1 ms, where both have valid rows"


def test_a_ratio_with_one_valid_repeat_says_that_it_has_no_interval(build):
    builder = build()
    for cell_id in builder.ids(loader="streaming", regime="wan_30ms")[1:]:
        builder.invalidate(cell_id, "others cpu", "≤ 10 %", "14 %")
    folder = builder.write()
    text = printed(folder)
    assert [word for word in words_of(text, "30 ms PyTorch") if "×" in word] == ["8.38×*", "8.38×*"]
    assert "*" not in " ".join(words_of(text, "0.1 ms PyTorch"))
    told = "≈ where its 95 % interval over repeats holds 1: no difference was found, * where a median is of one repeat"
    assert told in " ".join(text.split())
    render(read_report(folder))
    page = (folder / "report.html").read_text()
    assert "8.38×* <small>one repeat</small>" in page and told in page
    wide = words_of(printed(folder, 120), "30 ms PyTorch")
    assert " ".join(wide).count("8.38×* one repeat") == 2


def test_ratios_of_several_repeats_have_no_mark_and_no_legend_of_one(build):
    text = printed(build().write())
    assert "×*" not in text and "one repeat" not in text


def test_the_headline_says_which_times_are_of_one_repeat(build):
    builder = build(regimes=("local",), repeats=2, scatter=0.0)
    for loader in ("pytorch", "streaming"):
        builder.invalidate(builder.ids(loader=loader)[0], "others cpu", "≤ 10 %", "14 %")
    results = read_results(builder.write())
    said = write_headline(results, summarise(results)).replace("\u00a0", " ")
    order = "DALI 1.70 s, streaming 1.72 s (one repeat) and PyTorch 1.90 s (one repeat)"
    assert said == f"On local files, an epoch takes: {order}."


def test_the_headline_of_a_run_of_one_repeat_says_so_once(build):
    results = read_results(build(regimes=("local",), repeats=1, scatter=0.0).write())
    said = write_headline(results, summarise(results)).replace("\u00a0", " ")
    assert said == "On local files, an epoch takes in one repeat: DALI 1.70 s, streaming 1.72 s and PyTorch 1.90 s."


def test_the_headline_is_of_the_first_workload_with_a_valid_epoch(build):
    builder = build(regimes=("local",), loaders=("pytorch", "dali"), repeats=1, scatter=0.0)
    builder.config["workloads"] = {"unet3d": {}, "resnet50": {}}
    refused = builder.ids(loader="pytorch")[0]
    builder.cells[refused]["workload"] = builder.rows[refused]["workload"] = "unet3d"
    builder.invalidate(refused, "steal", "≤ 5 %", "7 %")
    results = read_results(builder.write())
    said = write_headline(results, summarise(results)).replace("\u00a0", " ")
    assert said == "On local files, an epoch of ResNet-50 takes in one repeat: DALI 1.70 s."


def test_a_single_loader_has_no_ratio_column(build):
    assert "ratio" not in printed(build(loaders=("dali",)).write())


def test_an_interrupted_run_without_epochs_is_told(build):
    builder = build()
    builder.interrupt_after(7)
    text = printed(builder.write(epochs=False))
    assert "0 of 18 epochs valid" in text
    assert "interrupted by signal 15" in text


def test_the_link_s_own_share_and_the_mount_are_told(build):
    builder = build()
    for row in builder.rows.values():
        row["link_j"] = 1.7
    text = " ".join(printed(builder.write()).split())
    assert "sshfs (the paper mounts NFSv4)" in text
    assert "0.31 s of CPU per epoch, 1.70 J" in text
    assert "Emulated A100" in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_regime_is_named_by_its_loss_and_jitter_too(build, width):
    text = printed(build(regimes=("local", "wan_30ms", "wan_lossy")).write(), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert all(part in text for part in ("\n30 ms,", "\n0.1 % loss,", "\n2 ms jitter"))
    assert words_of(text, "30 ms PyTorch"), "the regime without loss keeps its name"


def test_set_up_and_first_epoch_stand_beside_medians_of_settled_epochs(build):
    text = printed(build(scatter=0.0).settle().write())
    assert "per settled epoch: the first one of each cell is left out" in " ".join(text.split())
    line = next(line.split() for line in text.splitlines() if line.startswith("PyTorch, 30 ms"))
    assert line[3:7] == ["0.500", "s", "17.8", "s"]


def test_the_cost_of_shards_is_spread_over_the_epochs_that_read_them(build):
    folder = build().write()
    cost = {"dataset": "imagenet_small", "samples": 500, "seconds": 6.0, "cpu_s": 5.0, "raw_bytes": 57_600_000}
    cost |= {"shard_bytes": 57_900_000, "joules": 60.0, "energy_source": "cpu=estimate"}
    (folder / "preparation.json").write_text(json.dumps([cost]))
    text = " ".join(printed(folder).split())
    assert "6.00 s, 5.00 s of CPU, 60.0 J (estimate), once: 57.6 MB of files are 57.9 MB of shards" in text
    assert "6.00 s and 60.0 J over one epoch, 1.00 s and 10.0 J over the 6 of this run" in text
    assert "0.0600 s and 0.600 J over 100" in text


def test_the_computing_of_set_up_is_shown_as_a_share_of_the_first_epoch_s(build_sweep):
    folder = build_sweep(figures=("spdl_table2",)).write()
    metrics = pd.read_parquet(folder / "metrics.parquet")
    metrics.assign(setup_cpu_s=[0.45 if one == 1 else None for one in metrics["epoch"]]).to_parquet(
        folder / "metrics.parquet"
    )
    results = read_results(folder)
    table = make_cost_table(results, summarise(results), "resnet50")
    place = [head.name for head in table.heads].index("set-up CPU")
    assert {row[place] for row in table.rows} == {"15 %"}


def test_a_bound_is_compared_with_no_loader_and_each_loader_with_it(build):
    folder = build(scatter=0.0, loaders=("pytorch", "dali", "streaming", "fixed")).write()
    text = printed(folder)
    line = next(line.split() for line in text.splitlines() if line.startswith("PyTorch, 0.1 ms"))
    assert line[-2:] == ["49", "%"]
    lines = [line for line in text.splitlines() if "fixed batch" in line and not line.rstrip().endswith(" J")]
    assert [("×" in line, line.split()[-2:]) for line in lines] == [(False, ["of", "3"])] * 2 + [
        (False, ["100", "%"])
    ] * 2
    results = read_results(folder)
    groups = summarise(results)
    assert "fixed" not in write_headline(results, groups)
