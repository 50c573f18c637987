"""What a run was measured on, and what is made of a record that differs."""

import copy
import json
import os
import subprocess
import time

import pytest

from harness.errors import ResultsError
from harness.results import provenance
from harness.results.files import write_json
from harness.results.folder import RunFolder
from harness.results.provenance import collect_provenance, describe_machine, describe_source, list_changes
from tests.harness.records import change

TESTBED = {"kind": "netns", "run_id": "a", "link": {"kind": "relay", "notes": []}, "mount": {"kind": "sshfs"}}
SENSORS = [{"sensor": "perf", "source": "rapl-perf", "channels": [{"domain": "cpu", "device": "package-0"}]}]


def record(targets=(), sensors=SENSORS, **testbed):
    return collect_provenance(
        "python -m harness", describe_machine(targets), TESTBED | testbed, sensors, {"name": "tiny"}
    )


def test_the_same_place_has_no_changes_though_time_has_passed():
    before = json.loads(json.dumps(record()))
    time.sleep(0.01)
    later = record(run_id="b")
    later["host"] |= {"load_average": {"value": [9, 9, 9]}, "boot_time_utc": {"value": "2000"}}
    assert list_changes(before, later) == []


def test_every_field_says_how_it_was_had_and_what_is_not_found_is_no_change():
    found = record()
    fields = [found["command"], *(one for name, of in found.items() if name != "command" for one in of.values())]
    assert {field["how"] for field in fields} >= {"measured", "declared"}
    assert all((field["how"] == "unknown") == (field["value"] is None) for field in fields)
    hows = {name: found[section][name]["how"] for section, name in (("host", "kernel"), ("packages", "numpy"))}
    assert hows == {"kernel": "measured", "numpy": "declared"}
    before = copy.deepcopy(found)
    found["host"]["governor"] = {"value": None, "source": "cpufreq", "how": "unknown"}
    before["host"].pop("governor", None)
    assert list_changes(before, found) == []


@pytest.mark.parametrize(
    ("section", "name", "told"),
    [
        ("host", "kernel", "host.kernel: another, was "),
        ("host", "cpu", "host.cpu: another, was "),
        ("host", "hostname", "host.hostname: another, was "),
        ("source", "code_sha256", "source.code_sha256: another, was "),
    ],
)
def test_what_is_another_is_named_with_both_values(section, name, told):
    before = record()
    now = copy.deepcopy(before)
    now[section][name] = {"value": "another"}
    (change,) = list_changes(before, now)
    assert change.startswith(told)


def test_every_package_and_variable_counts(monkeypatch):
    before = record()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert list_changes(before, record()) == ["environment.OMP_NUM_THREADS: 3, was absent"]
    monkeypatch.undo()
    now = copy.deepcopy(before)
    installed = now["installed"]["packages"]["value"]
    was = installed["numpy"]
    installed["numpy"], installed["pillow-simd"] = "0.1", "9.0"
    assert list_changes(before, now) == [f"installed.numpy: 0.1, was {was}", "installed.pillow-simd: 9.0, was absent"]


def test_the_link_the_mount_and_the_sensors_count():
    estimate = [{"sensor": "estimate", "channels": [{"domain": "cpu", "source": "estimate"}]}]
    now = record(sensors=estimate, link={"kind": "netem"}, mount={"kind": "nfs4"})
    assert list_changes(record(), now) == [
        "energy.sensors: cpu=estimate, was cpu=rapl-perf",
        "testbed.link: netem, was relay",
        "testbed.mount: nfs4, was sshfs",
    ]


def test_a_loader_of_one_s_own_is_source_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "my_own_loader.py"
    own.write_text("class Loader: pass\n")
    before = describe_machine(["my_own_loader.Loader"])
    assert list_changes(before, describe_machine(["my_own_loader.Loader"])) == []
    own.write_text("class Loader: fast = True\n")
    (change,) = list_changes(before, describe_machine(["my_own_loader.Loader"]))
    assert change.startswith("source.code_sha256")


def test_a_cell_names_its_session_and_a_damaged_record_is_one_error(tmp_path, stored):
    results = RunFolder.create(tmp_path, "smoke")
    second = change(stored(), cell={"provenance": "provenance-2.json"}).cell
    for cell_id, content in (("old", stored().cell), ("new", second), ("broken", [])):
        results.cell_folder(cell_id).mkdir()
        write_json(results.cell_folder(cell_id) / "cell.json", content)
    found = results.find_sessions(["old", "new", "broken", "absent"])
    assert found == {"old": "provenance.json", "new": "provenance-2.json"}
    for content in ("", "[]", "{}", None):
        if content is not None:
            results.provenance.write_text(content)
        else:
            results.provenance.unlink()
        with pytest.raises(ResultsError, match=r"provenance\.json"):
            results.read_session("provenance.json")
    assert results.name_provenance().name == "provenance-3.json"


def test_nothing_is_written_into_the_users_repository(tmp_path, monkeypatch):
    """A run that is interrupted kills git: the index would stay locked."""
    (tmp_path / "harness" / "results").mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(source := tmp_path / "harness" / "results" / "provenance.py"))
    source.write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    os.utime(source, (1, 1))  # git would note the new time in its index
    before = (tmp_path / ".git" / "index").read_bytes()
    assert describe_source()["changed"]["value"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == before
    (tmp_path / "beside.json").write_text("a result is no code")
    assert describe_source()["changed"]["value"] is False
    source.write_text("changed = True")
    assert describe_source()["changed"]["value"] is True
