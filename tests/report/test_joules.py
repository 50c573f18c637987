"""What the joules of an epoch were for, on the terminal and on the page."""

import io

from rich.console import Console

from harness.report import print_report, read_report, render
from harness.report.costs import make_joule_table
from harness.report.summary import summarise
from harness.results.reader import read_results

MEASURED = "cpu=rapl-powercap;gpu=nvml-counter"
KNOWN = {"net_j": 100.0, "stalled_j": 40.0, "loader_j": 20.0, "mount_j": 5.0, "link_j": 3.0, "other_j": -1.0}


def folder(build, source=MEASURED, **energy):
    builder = build(loaders=("pytorch",), regimes=("wan_30ms",), energy_source=source)
    for row in builder.rows.values():
        row.update(KNOWN)
    builder.config["energy"] = energy
    return builder


def heads(table):
    return [head.name for head in table.heads]


def table(folder):
    results = read_results(folder)
    return make_joule_table(results, summarise(results), "resnet50")


def test_a_table_has_what_is_known_the_most_important_first(build):
    found = table(folder(build).write())
    assert heads(found) == ["joules", "net", "stalled", "loader", "mount", "link", "other"]
    assert found.rows == [("PyTorch", "100 J", "40.0 J", "20.0 J", "5.00 J", "3.00 J", "-1.00 J")]
    assert "est." not in found.explanation


def test_each_column_that_contains_an_estimate_says_so(build):
    found = table(folder(build, "cpu=rapl-powercap;gpu=estimate").write())
    assert heads(found) == ["joules", "net est.", "stalled est.", "board est.", "loader", "mount", "link", "other"]
    assert "no sensor measured" in found.explanation


def test_parts_of_all_joules_say_so(build):
    builder = folder(build)
    for row in builder.rows.values():
        row.update(net_j=None)
    found = table(builder.write())
    assert heads(found) == ["joules", "stalled", "loader gross", "mount gross", "link gross", "other gross"]
    assert "the idle ones too" in found.explanation


def test_money_and_grams_are_those_of_all_joules_where_their_price_is_set(build):
    builder = folder(build, price_per_kwh=0.3, gco2_per_kwh=400.0)
    for row in builder.rows.values():
        row["total_j"] = 3600.0
    found = table(builder.write())
    assert dict(zip(heads(found), found.rows[0], strict=True))["cost"] == "0.000300"
    assert dict(zip(heads(found), found.rows[0], strict=True))["g CO2"] == "0.400"


def test_a_narrow_terminal_has_fewer_columns_and_the_page_all(build):
    run = folder(build).write()
    stream = io.StringIO()
    print_report(read_report(run), Console(file=stream, width=40))
    (head,) = [line for line in stream.getvalue().splitlines() if line.startswith("joules  ")]
    assert head.split() == ["joules", "net", "stalled", "loader", "mount"]
    render(read_report(run))
    page = (run / "report.html").read_text()
    assert "What the joules of an epoch were for" in page
    assert ">other<" in page


def test_without_any_of_them_there_is_no_table(build):
    builder = folder(build)
    for row in builder.rows.values():
        row.update(dict.fromkeys(KNOWN))
    assert table(builder.write()) is None


def test_the_idle_power_of_a_part_is_shown_once_by_its_best_source(build):
    """A board has a counter, a power and an average; the processors beside it are estimated."""
    builder = folder(build)
    sources = [
        ("cpu", "cpu", "estimate", 10.0),
        ("gpu-0", "gpu", "nvml-power", 99.0),
        ("gpu-0", "gpu", "nvml-counter", 117.0),
    ]
    of = {"node": "vm", "start_ns": 0, "end_ns": 1, "error_w": None}
    idle = [of | dict(zip(("device", "domain", "source", "watts"), one, strict=True)) for one in sources]
    for cell in builder.cells.values():
        cell["energy"]["idle"] = idle
    file = io.StringIO()
    print_report(read_report(builder.write()), Console(file=file, width=200))
    assert "vm drew 10.0 W (cpu, an estimate), 117 W (gpu-0); net joules" in file.getvalue()


def test_joules_at_the_wall_come_first_with_the_data_that_each_brought(build):
    builder = folder(build, "cpu=estimate;wall=shelly-energy")
    for row in builder.rows.values():
        row.update(wall_j=2500.0, bytes=5 * 10**9)
    found = table(builder.write())
    assert heads(found)[:4] == ["joules", "wall", "GB/J at the wall", "net est."]
    assert found.rows[0][:3] == ("PyTorch", "2500 J", "0.00200")
    assert "no part of the total" in found.explanation
