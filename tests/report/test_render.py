import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import fields
from html import unescape
from importlib import import_module

import pytest
from markupsafe import escape

from harness.errors import BROKEN_FIGURE, ResultsError
from harness.report import check_figures, read_report, render
from harness.report.__main__ import main
from harness.report.claims import Claim
from harness.report.figures import find_figure
from harness.results.reader import read_results
from tests.report.conftest import FolderBuilder
from tests.report.figures import drawn_text

pytestmark = pytest.mark.process  # they draw figures, which takes seconds


def page(folder):
    return (folder / "report.html").read_text()


def page_of(builder, *figures):
    """Return the page of a builder's run, with these figures alone."""
    builder.config["figures"] = list(figures)
    folder = builder.write()
    render(read_report(folder))
    return page(folder)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The folder of a run of three loaders near and far, with its report, and what was drawn."""
    folder = FolderBuilder(tmp_path_factory.mktemp("rendered") / "2025-11-20T13-00-00.000Z_wan30ms").write()
    return folder, render(read_report(folder))


def test_everything_is_drawn_from_the_folder_and_listed(rendered):
    folder, drawn = rendered
    files = {str(path.relative_to(folder)) for path in drawn.files}
    assert files == {"claims.json", "figures/emlio_fig5.png", "figures/emlio_fig5.svg", "report.html"}
    claims = json.loads((folder / "claims.json").read_text())
    assert set(claims[0]) == {field.name for field in fields(Claim)}


def test_drawing_again_replaces_what_was_drawn(rendered):
    folder, first = rendered
    words = list(ET.parse(folder / "figures/emlio_fig5.svg").getroot().itertext())
    assert render(read_report(folder)) == first
    assert list(ET.parse(folder / "figures/emlio_fig5.svg").getroot().itertext()) == words


def test_the_figure_labels_estimates_and_holds_the_paper_s_values(rendered):
    text = drawn_text(rendered[0], "emlio_fig5")
    for words in ("hatched: estimate, not measured", "EMLIO", "4230", "36.4", "kJ per epoch", "given", "24.1"):
        assert words in text


def test_a_measured_figure_has_no_hatch(build):
    folder = build(energy_source="cpu=rapl-powercap;dram=rapl-powercap;gpu=nvml-counter").write()
    render(read_report(folder))
    svg = (folder / "figures/emlio_fig5.svg").read_text()
    assert "hatched" not in svg
    assert "<pattern" not in svg
    assert "DRAM joules" in svg


def test_the_page_needs_nothing_beside_it(rendered):
    folder, _ = rendered
    text = page(folder)
    assert not re.search(r"""(src|href)=["'](?!#)""", text.replace("xlink:href", "xlink_href"))
    assert "@import" not in text
    assert "url(http" not in text
    assert "<svg" in text
    assert str(folder.parent) not in text


def test_the_page_names_a_regime_by_its_loss_and_jitter_too(build):
    assert "30 ms, 0.1 % loss, 2 ms jitter" in page_of(build(regimes=("local", "wan_lossy")))


def test_the_page_says_what_is_emulated_estimated_and_how_to_reproduce(build):
    builder = build()
    text = page_of(builder)
    for words in (
        "Emulated A100",
        "an estimate, not a measurement",
        "18 of 18 epochs valid",
        "python -m harness +experiment=wan30ms repeats=3",
        f"python -m harness.report results/{builder.folder.name}",
        "exactly once",
        "6.18.0-x86_64",
    ):
        assert words in text


def test_headers_of_tables_say_what_they_are_of_and_paper_shows_everything(build):
    builder = build()
    builder.invalidate(builder.ids()[0], "spread", "< 10 %", "14 %")
    text = page_of(builder)
    headers = re.findall(r"<th\b[^>]*>", text)
    assert headers
    assert all(re.search(r'scope="(col|row|rowgroup)"', header) for header in headers)
    for rule in ("details::details-content { content-visibility: visible", "figure svg { min-width: 0", "pre-wrap"):
        assert rule in text


def test_no_column_of_a_narrow_page_is_left_out_and_an_edge_shows_that_there_is_more(rendered):
    folder, _ = rendered
    text = page(folder)
    assert "display: none; }" not in text.replace(".claims thead { display: none; }", "")
    assert re.search(r"\.scroll \{[^}]*var\(--shade\)[^}]*scroll", text)
    heads = re.findall(
        r'<th scope="col"[^>]*>([^<]*)</th>', text.split('<table class="medians">')[1].split("</thead>")[0]
    )
    assert heads == ["Loader", "Epoch", "Time ratio", "Joules", "Joules ratio", "AU", "MB/s", "Valid"]


def test_a_figure_has_the_width_on_a_narrow_page_at_which_it_was_drawn(rendered):
    folder, _ = rendered
    assert re.search(r'<svg [^>]*style="--drawn: 720pt"', page(folder))
    assert "figure svg { min-width: var(--drawn); }" in page(folder)


def test_no_time_lies_over_the_cross_of_a_first_epoch(build):
    results = read_results(build().settle(longer_s=1.2).write())
    figure = find_figure("emlio_fig5").draw(results)
    figure.canvas.draw()
    axes = next(one for one in figure.get_axes() if one.get_ylabel() == "seconds per epoch")
    crosses = [
        axes.transData.transform(point)
        for line in axes.lines
        if line.get_marker() == "x"
        for point in line.get_xydata()
    ]
    times = [note.get_window_extent() for note in axes.texts if note.get_text().replace(".", "").isdigit()]
    assert (len(crosses), len(times)) == (18, 6)
    assert not [one for one in times for x, y in crosses if one.padded(1).contains(x, y)]


def test_the_page_s_commands_name_the_results_dir_that_was_given(build):
    builder = build()
    builder.config["results_dir"] = "/data/my runs"
    builder.invalidate(builder.ids()[0], "spread", "< 10 %", "14 %")
    text, name = unescape(page_of(builder)), builder.folder.name
    again = f"python -m harness resume={name} 'results_dir=\"/data/my runs\"'"
    assert f"<pre>{again} resume_invalid=true</pre>" in text
    assert f"<pre>python -m harness.report '/data/my runs/{name}'</pre>" in text


def test_samples_that_a_loader_left_out_by_policy_are_told_with_their_ids_and_why(build):
    builder = build()
    for epoch, cell_id in enumerate(builder.ids(loader="pytorch")[:2], start=1):
        told = {"3": "sample 3 (a/3.jpg): decode: cannot be read", str(6 + epoch): "decode: cut short"}
        builder.cells[cell_id]["skipped"] = [{"epoch": 1, "count": 2, "samples": told}]
    told = "3 samples skipped by policy (on_error=skip): 3, 7, 8. The first: sample 3 (a/3.jpg): decode"
    assert told in page_of(builder)
    assert "skipped by policy" not in page_of(build())


def test_text_from_the_run_is_escaped_on_the_page(build):
    builder = build()
    builder.fail(builder.ids()[0], "SampleError: <script>alert(1)</script>")
    text = page_of(builder)
    assert "<script>" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize(
    "options",
    [{"regimes": ("local",)}, {"loaders": ("dali",)}, {"regimes": ("local", "lan_0_1ms", "lan_10ms", "wan_30ms")}],
    ids=["local alone", "one loader", "four regimes"],
)
def test_other_shapes_of_run_are_drawn(build, options):
    folder = build(**options).write()
    render(read_report(folder))
    assert (folder / "figures/emlio_fig5.png").stat().st_size > 10_000


def test_a_loader_that_runs_in_one_regime_alone_is_missed_in_no_other(build):
    builder = build()
    builder.config["loaders"]["dali"]["regimes"] = ["wan_30ms"]
    gone = builder.ids(loader="dali", regime="lan_0_1ms")
    for cell_id in gone:
        builder.cells.pop(cell_id), builder.rows.pop(cell_id)
    builder.events = [event for event in builder.events if event["cell_id"] not in gone]
    whole = page_of(builder, "emlio_fig5")
    assert "DALI" in whole and "not run" not in whole


def test_a_run_without_a_valid_row_says_that_nothing_is_a_result(build):
    builder = build(regimes=("local",))
    for cell_id in builder.ids():
        builder.invalidate(cell_id, "spread", "< 10 %", "14 %")
    folder = builder.write()
    render(read_report(folder))
    assert "No epoch passed every validity rule" in page(folder)
    assert "† no valid row" in (folder / "figures/emlio_fig5.svg").read_text()


def test_an_interrupted_run_has_a_page_and_no_figure(build):
    builder = build()
    builder.interrupt_after(7)
    folder = builder.write(epochs=False)
    assert [path.name for path in render(read_report(folder)).files] == ["claims.json", "report.html"]
    assert f"python -m harness resume={folder.name}</pre>" in page(folder)
    assert "epochs.csv" in page(folder)


def test_a_run_without_joules_is_drawn_without_them(build):
    builder = build(regimes=("local",))
    for row in builder.rows.values():
        row |= {"cpu_j": None, "gpu_j": None, "total_j": None, "energy_source": ""}
    folder = builder.write()
    render(read_report(folder))
    assert "joules are unknown" in (folder / "figures/emlio_fig5.svg").read_text()


def test_an_unknown_figure_is_refused_with_what_there_is():
    with pytest.raises(ResultsError, match=r"'fig99'.*emlio_fig10,.* emlio_fig5"):
        check_figures(["fig99"])


OWN_FIGURE = """\"\"\"Every epoch's "seconds" & no <joules>.\"\"\"
from matplotlib.figure import Figure

def draw(results):
    figure = Figure()
    figure.subplots().plot([row.duration_s for row in results.rows])
    return figure

def caption(results):
    return 'Every epoch in its order.'
"""


@pytest.fixture
def own_figure(tmp_path, monkeypatch):
    """Return a maker of a figure of the user's own, by its import path and its text."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name, text=OWN_FIGURE):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["my_points", "my_figures.points"])
def test_a_figure_of_the_user_s_own_is_found_by_its_import_path(build, own_figure, name):
    builder = build()
    builder.config["figures"] = [own_figure(name)]
    folder = builder.write()
    check_figures(builder.config["figures"])
    assert not render(read_report(folder)).broken
    assert (folder / "figures" / f"{name.rpartition('.')[2]}.svg").exists()
    assert "Every epoch in its order." in page(folder)
    assert 'aria-label="Every epoch&#39;s &#34;seconds&#34; &amp; no &lt;joules&gt;"' in page(folder)


def test_two_figures_of_one_name_have_files_of_their_own(build, own_figure):
    builder = build()
    builder.config["figures"] = [own_figure("first_figures.points"), own_figure("second_figures.points")]
    drawn = {path.name for path in render(read_report(builder.write())).files}
    assert {"points.png", "second_figures_points.png"} <= drawn


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def draw(results)",
            "'refused_figure' cannot be imported: SyntaxError: expected ':' (refused_figure.py, line 1)",
        ),
        (
            "import nothing_of_this_name",
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("draw = None", "is no figure: it lacks draw and caption; expected draw(results) and caption(results)"),
        (f"{OWN_FIGURE}\nCLAIMS = __file__", "docs/claims.md describes claims"),
    ],
)
def test_a_figure_that_cannot_be_one_is_refused_before_the_run(own_figure, text, said):
    with pytest.raises(ResultsError, match=re.escape(said)):
        check_figures([own_figure("refused_figure", text)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN_FIGURE.replace("return figure", "return figure.of.mine"), "no attribute 'of' (broken_figure.py, line 7)"),
        (
            OWN_FIGURE.replace("'Every", "1 / 0, 'Every"),
            "ZeroDivisionError: division by zero (broken_figure.py, line 10)",
        ),
        (f"{OWN_FIGURE}\ndef table(results):\n    raise KeyError('<pss>')\n", "KeyError: '<pss>' (broken_figure.py"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (OWN_FIGURE.replace("return figure", "return results"), "AttributeError: 'Results' object has no attribute"),
    ],
    ids=["draw", "caption", "table", "import", "no figure"],
)
def test_a_figure_that_raises_leaves_its_error_on_the_page_and_a_status(build, own_figure, capsys, text, said):
    builder = build(regimes=("local",), repeats=1)
    builder.config["figures"] = [own_figure("broken_figure", text), own_figure("whole_figure")]
    folder = builder.write()
    assert main([str(folder)]) == BROKEN_FIGURE
    shown = capsys.readouterr()
    assert shown.err.startswith("error: figure broken_figure cannot be drawn: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert escape(said) in page(folder)
    assert "whole_figure.svg" in shown.out
    assert "Every epoch in its order." in page(folder)


def test_a_figure_that_is_not_there_any_more_leaves_the_rest_of_the_report(build, capsys):
    builder = build(regimes=("local",), repeats=1)
    builder.config["figures"] = ["gone_with_its_folder", "emlio_fig5"]
    folder = builder.write()
    assert main([str(folder)]) == BROKEN_FIGURE
    assert capsys.readouterr().err.startswith("error: figure gone_with_its_folder cannot be drawn: ")
    assert (folder / "figures" / "emlio_fig5.svg").exists()
    assert json.loads((folder / "claims.json").read_text())


def test_the_command_draws_a_folder_and_refuses_another_with_one_line(build, tmp_path, capsys):
    folder = build(regimes=("local",), repeats=1).write()
    assert main([str(folder)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert read_results(folder).name == "wan30ms"


@pytest.mark.parametrize(("figure", "streams"), [("emlio_fig7", 1), ("emlio_fig8", 2)])
def test_a_figure_of_which_the_paper_s_text_has_no_numbers_says_so_and_shows_none(build, figure, streams):
    dataset = "harness.datasets.imagenet_like.Synthetic"
    whole = page_of(build(loaders=("dali", "streaming"), streams=streams, dataset=dataset), figure)
    assert f"figure {figure[-1]}: its text gives no numbers" in whole
    assert "has no numbers in its text" in whole


def test_the_sharded_figure_holds_the_paper_s_values_and_says_what_lay_where(build):
    regimes = ("lan_0_1ms", "lan_10ms", "wan_30ms")
    whole = page_of(build(regimes=regimes, placement="half"), "emlio_fig10")
    for words in (">4150<", ">222<", "DRAM joules", "half of them local", ">18.0<"):
        assert words in whole
    assert "249 of 500 samples lie on the compute node" in whole


def test_a_run_that_was_not_alone_is_told_beside_the_energy(build):
    builder = build()
    builder.check(builder.ids()[0], "alone", "no other run", "1 other: x", "warn")
    assert "Another run was on this machine during 1 epoch" in page_of(builder)


def test_claims_are_judged_once_for_the_table_the_page_and_claims_json(build, monkeypatch, capsys):
    folder = build(regimes=("local",), repeats=1).write()
    calls = []
    monkeypatch.setattr(import_module("harness.report.render"), "judge", lambda *asked: calls.append(asked) or ())
    assert main([str(folder)]) == 0
    assert len(calls) == 1


def test_a_model_check_is_called_so_in_every_figure_table_and_headline(build_sweep, capsys):
    builder = build_sweep(figures=("minato_model_fig9",))
    builder.accelerator, builder.model_check = "emulated: A100", "unet3d: Table 2 of MinatoLoader"
    folder = builder.write()
    assert main([str(folder)]) == 0
    text, printed = unescape(page(folder)), capsys.readouterr().out
    assert '<p class="headline">Model check, no measurement of preprocessing: ' in text
    assert "Model check: MinatoLoader's figure 9" in text
    assert "<dt>Model check</dt><dd>Samples sleep as long as published" in text and "Table 2 of MinatoLoader" in text
    assert " model check; minato_model_fig9; emulated: A100" in drawn_text(folder, "minato_model_fig9")
    said = "odel check: samples and steps only wait, and no preprocessing is measured"
    assert " ".join(printed.split()).count(said) >= 2 and text.count(said) >= 2
    measured = build_sweep(figures=("minato_model_fig9",))
    measured.folder = folder.with_name("2025-11-20T14-00-00.002Z_sweep")
    render(read_report(measured.write()))
    text = unescape(page(measured.folder))
    assert said not in text and "<dt>Model check" not in text and "Model check: MinatoLoader's figure 9" not in text
