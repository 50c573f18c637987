"""NVML's functions for boards that are not there: energy grows in real time, updated every 20 ms.

FAKE_NVML names a JSON file: {"boards": n, "power_only": [i], "mig": [i], "lost": [i], "hangs": [i], "reset": [i]},
read anew at every call, so that a test can break a board while an agent runs.
"""

import json
import os
import time
from pathlib import Path

UPDATE_S = 0.02
WATTS = 300.0
_SINCE_DRIVER_LOAD_MJ = 987_654_321


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


def _state(key):
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text()).get(key, [])


def _touch(handle):
    if handle in _state("lost"):
        raise NVMLError_GpuIsLost("GPU is lost")
    if handle in _state("hangs"):
        time.sleep(0.6)


def nvmlInit():
    if _state("no_driver"):
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return "580.00"


def nvmlDeviceGetCount():
    return _state("boards") or 0


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetName(handle):
    return "NVIDIA Fake"


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle:08d}"


def nvmlDeviceGetMigMode(handle):
    if handle in _state("mig"):
        return (1, 1)
    raise NVMLError_NotSupported("Not Supported")


def nvmlDeviceGetTotalEnergyConsumption(handle):
    _touch(handle)
    if handle in _state("power_only"):
        raise NVMLError_NotSupported("Not Supported")
    if handle in _state("reset"):
        return 5
    updates = int(time.monotonic() / UPDATE_S)
    return _SINCE_DRIVER_LOAD_MJ + round(updates * UPDATE_S * WATTS * 1000)


def nvmlDeviceGetPowerUsage(handle):
    _touch(handle)
    return round(WATTS * 1000)
