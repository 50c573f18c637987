from energymon.analysis.attribution import Channels, add_up, best_sources, components
from energymon.analysis.integrate import Energy


def energy(device, domain, source, error_j=1.0):
    return Energy("n", device, domain, source, 100.0, error_j, False, 0.0, error_j, error_j)


def channels(*devices):
    return Channels(frozenset(devices), {}, False)


def test_a_total_names_each_lost_device_with_its_domain():
    found = components([], channels(("package-0", "cpu"), ("package-0", "dram")))
    assert [(c.name, c.lost) for c in found] == [
        ("cpu", ("package-0",)),
        ("dram", ("package-0",)),
        ("total", ("package-0 cpu", "package-0 dram")),
    ]


def test_the_total_over_nodes_names_the_domain_of_a_lost_device_once():
    (*_, total) = components([], channels(("package-0", "cpu")))
    assert add_up([total]).lost == ("package-0 cpu",)


def test_a_total_that_contains_sampled_power_has_no_bound():
    best = best_sources([energy("package-0", "cpu", "rapl-perf"), energy("gpu-0", "gpu", "nvml-power", None)])
    cpu, gpu, total = components(best, channels(("package-0", "cpu"), ("gpu-0", "gpu")))
    assert (cpu.error_j, gpu.error_j, total.error_j) == (1.0, None, None)
    assert total.joules == 200.0
