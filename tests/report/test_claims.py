import pytest

from harness.report.claims import FAIL, NOT_CHECKED, PASS, judge
from harness.results.reader import read_results

MEASURED = "cpu=rapl-powercap;dram=rapl-powercap;gpu=nvml-counter"


def verdicts(folder):
    return {claim.claim: claim for claim in judge(read_results(folder))}


def one(claims, *words):
    (found,) = [claim for text, claim in claims.items() if all(word in text for word in words)]
    return found


def test_a_constant_streaming_loader_holds_and_a_slower_one_does_not(build):
    steady = one(verdicts(build(scatter=0.0).write()), "varies")
    assert (steady.verdict, steady.actual) == (PASS, "2.1 %")
    builder = build(scatter=0.0)
    for cell_id in builder.ids(loader="streaming", regime="wan_30ms"):
        builder.rows[cell_id]["duration_s"] = 2.0
    assert one(verdicts(builder.write()), "varies").verdict == FAIL


def test_a_slowdown_reproduces_the_paper_s_within_a_factor_of_two(build):
    claims = verdicts(build().write())
    assert one(claims, "DALI's epoch", "as at 0.1 ms").verdict == PASS
    assert one(claims, "PyTorch's epoch", "as at 0.1 ms").verdict == FAIL


def test_energy_is_not_judged_on_an_estimate_and_is_on_a_measurement(build):
    estimated = one(verdicts(build(accelerator="cuda: NVIDIA H200").write()), "PyTorch uses")
    assert (estimated.verdict, estimated.actual) == (NOT_CHECKED, "")
    assert "estimate" in estimated.reason
    real = build(energy_source=MEASURED, accelerator="cuda: NVIDIA H200").write()
    assert one(verdicts(real), "PyTorch uses").verdict == PASS


def test_energy_is_not_judged_on_an_emulated_accelerator(build):
    claim = one(verdicts(build(energy_source=MEASURED).write()), "PyTorch uses")
    assert (claim.verdict, claim.reason) == (NOT_CHECKED, "the accelerator is emulated")


def test_invalid_rows_judge_nothing(build):
    builder = build()
    for cell_id in builder.ids():
        builder.invalidate(cell_id, "spread", "< 10 %", "14 %")
    assert {claim.verdict for claim in verdicts(builder.write()).values()} == {NOT_CHECKED}


def test_local_order_is_judged_where_there_is_a_local_regime(build):
    near = verdicts(build(regimes=("local",)).write())
    assert [one(near, "On local files", who).verdict for who in ("DALI's", "PyTorch's")] == [PASS, PASS]
    assert one(verdicts(build().write()), "local files DALI's").reason == "the run has no local files"


@pytest.mark.parametrize("loaders", [("dali",), ("pytorch", "dali")])
def test_without_a_streaming_loader_its_claims_are_not_judged(build, loaders):
    claim = one(verdicts(build(loaders=loaders).write()), "varies")
    assert (claim.verdict, claim.reason) == (NOT_CHECKED, "the run has no streaming")


def test_another_workload_judges_nothing_of_resnet_50(build):
    builder = build()
    builder.config["workloads"] = {"vit_b16": builder.config["workloads"]["resnet50"]}
    for one in (*builder.cells.values(), *builder.rows.values()):
        one["workload"] = "vit_b16"
    assert {claim.reason for claim in verdicts(builder.write()).values()} == {"the run has no ResNet-50"}


SYNTHETIC = "harness.datasets.synthetic.Synthetic"


def times(builder, loader, seconds):
    """Give every epoch of a loader its regime's seconds."""
    for regime, duration_s in seconds.items():
        for cell_id in builder.ids(loader=loader, regime=regime):
            builder.rows[cell_id]["duration_s"] = duration_s
    return builder


def test_one_stream_is_slower_than_dali_when_near_or_the_claim_does_not_hold(build):
    def folder(near_s):
        builder = build(regimes=("lan_0_1ms", "lan_1ms", "wan_30ms"), streams=1, dataset=SYNTHETIC)
        times(builder, "dali", {"lan_0_1ms": 2.0, "lan_1ms": 2.0})
        return times(builder, "streaming", {"lan_0_1ms": near_s, "lan_1ms": 2.5, "wan_30ms": 2.5}).write()

    held, not_held = (one(verdicts(folder(near_s)), "Over one stream") for near_s in (2.2, 1.0))
    assert (held.verdict, held.actual) == (PASS, "1.10×")
    assert not_held.verdict == FAIL
    assert "0.50× at 0.1, 1.25× at 1" in not_held.reason and "slices of the mapped file" in not_held.reason
    assert one(verdicts(folder(2.2)), "varies").claim.endswith("from 1 to 30 ms.")


def test_two_streams_lead_twofold_at_both_round_trips(build):
    def folder(at_1ms):
        builder = build(regimes=("lan_0_1ms", "lan_1ms"), dataset=SYNTHETIC)
        times(builder, "dali", {"lan_0_1ms": 5.0, "lan_1ms": 5.0})
        return times(builder, "streaming", {"lan_0_1ms": 2.0, "lan_1ms": at_1ms}).write()

    assert one(verdicts(folder(2.0)), "throughput").verdict == PASS
    assert one(verdicts(folder(2.6)), "throughput").verdict == FAIL
    assert one(verdicts(folder(2.0)), "less energy").reason == "the accelerator is emulated"


def test_a_half_local_dataset_is_compared_with_the_paper_s_own_half(build):
    builder = build(regimes=("lan_0_1ms", "lan_10ms", "wan_30ms"), placement="half")
    times(builder, "dali", {"lan_0_1ms": 2.3, "lan_10ms": 14.2, "wan_30ms": 41.5})
    times(builder, "streaming", {"lan_0_1ms": 2.2, "lan_10ms": 2.2, "wan_30ms": 2.2})
    claims = verdicts(builder.write())
    assert (one(claims, "At 10 ms", "DALI").actual, one(claims, "At 10 ms", "DALI").expected) == ("6.45×", "6.42×")
    assert one(claims, "At 30 ms DALI").expected == "18.7×"
    assert one(claims, "18 times as long").verdict == PASS
    assert one(claims, "At 0.1 ms the streaming").expected == "0.96×"
    assert one(claims, "less energy").expected == "≥ 44 % less"
    assert not any("PyTorch" in claim for claim in claims)
