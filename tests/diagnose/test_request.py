from importlib import resources

import pytest

from harness.diagnose.request import list_workload_datasets, make_request
from harness.errors import ConfigError


def test_a_workload_brings_its_dataset_and_the_loader_its_arguments(tmp_path):
    request = make_request(["workload=resnet50", "workload.batch_size=8", "loader=dali", f"cache_dir={tmp_path}"])
    assert request.workload.params["batch_size"] == 8
    assert request.loader.target == "loaders.dali.DaliLoader"
    assert request.dataset.key == list_workload_datasets()["resnet50"]
    assert request.cache == tmp_path
    assert "workload.batch_size=8" in request.command


def test_another_dataset_takes_the_place_of_the_workload_s():
    assert make_request(["dataset=synthetic_2mb", "dataset.samples=10"]).dataset.key == "synthetic_2mb"


def test_workloads_with_datasets_and_their_datasets_are_there():
    for workload, dataset in list_workload_datasets().items():
        assert resources.files("conf").joinpath("workload", f"{workload}.yaml").is_file()
        assert resources.files("conf").joinpath("dataset", f"{dataset}.yaml").is_file()


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("workload=nonsense", "workload=nonsense"),
        ("workload.batch_size=0", "batch_size=0"),
        ("workload.nonsense=1", "nonsense"),
        ("loader=streaming", "loader=streaming: is fed by a daemon"),
        ("loader.nonsense=1", "nonsense"),
        ("dataset=nonsense", "nonsense"),
        ("accelerator.kind=abacus", "accelerator.kind='abacus'"),
        ("accelerator=none", "accelerator=none"),
        ("diagnose.workers=[0,1]", "diagnose.workers"),
        ("diagnose.workers=[]", "diagnose.workers"),
        ("diagnose.workers=4", "diagnose.workers"),
        ("diagnose.budget_s=0", "diagnose.budget_s=0"),
        ("diagnose=5", "diagnose=5: expected a section"),
        ("+loader@loaders.dali=dali", "loaders pytorch, dali: a diagnosis is of one of the loaders alone"),
        ("+regime@regimes.wan=wan_30ms", "regimes local, wan: a diagnosis is of local files"),
        ("workload=resnet5", "workload=resnet5 (did you mean resnet50?)"),
        ("loader.num_wokers=2", "did you mean num_workers?"),
        ("--nonsense", "--nonsense: no such flag"),
        ("results_dir=null", "results_dir=None: expected a folder"),
        ("dataset=", "dataset=: there is no such dataset"),
        ("diagnose.budget_s=soon", "diagnose.budget_s='soon'"),
    ],
)
def test_what_cannot_be_diagnosed_is_named(argument, named):
    with pytest.raises(ConfigError) as error:
        make_request([argument])
    assert named in str(error.value)
