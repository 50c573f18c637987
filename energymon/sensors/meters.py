"""Meters of what a whole machine draws at its supply: hwmon, IPMI DCMI, Redfish, and plugs of Tasmota and Shelly.

A meter's `read` takes seconds at most and raises SensorError, which says what was asked and what was expected.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit

from energymon.errors import OptionError, SensorError
from joulefeed.child import Child, ChildError

AUTH: Final = "ENERGYMON_WALL_AUTH"
"""Environment variable with USER:PASSWORD of a Redfish service."""
_ANSWER_S: Final = 5.0
"""How long one answer over HTTP may take in all."""
_PROGRAM_S: Final = 10.0
_MAX_BYTES: Final = 2**18
_J_PER_KWH: Final = 3_600_000.0
_WHOLE_MACHINE: Final = ("power_meter", "ibmaem")
"""Drivers of hwmon whose meters are of machines (Linux, Documentation/hwmon)."""


class MeterValue(NamedTuple):
    """What a meter shows."""

    watts: float | None
    joules: float | None
    """Cumulative; None where it counts no energy."""
    unit_j: float = 0.0
    """Joules of one step of the counter."""


class Meter(ABC):
    """One meter, which has answered when it is made."""

    kind: ClassVar[str]
    device: str
    """Its name in the readings."""
    place: str
    """What it is read from, for people."""
    error_share: float | None = None
    """Error of its joules as its maker states it, 0 to 1; None where it does not."""

    @abstractmethod
    def read(self) -> MeterValue:
        """Ask it once; raises SensorError."""


class HwmonMeter(Meter):
    """A power meter of the kernel's hwmon, by ACPI or another driver."""

    kind = "hwmon"

    def __init__(self, name: str, sysfs: Path) -> None:
        """Take its folder's, driver's or label's name; without one, the only meter of a machine."""
        found: dict[Path, list[str]] = {}
        for entry in sorted((sysfs / "class" / "hwmon").glob("hwmon*")):
            # Drivers of the older interface have their files in the device.
            for folder in (entry, entry / "device"):
                if any((folder / file).exists() for file in ("energy1_input", "power1_average", "power1_input")):
                    names = [_line(folder / file) for file in ("name", "power1_label", "power1_oem_info")]
                    found[folder] = [entry.name, *filter(None, names)]
                    break
        wanted = {name} if name else set(_WHOLE_MACHINE)
        fitting = [folder for folder, names in found.items() if wanted & set(names)]
        if len(fitting) != 1:
            named = "; ".join(" ".join(names) for names in found.values()) or "none"
            why = f"{len(fitting)} meters are {name or 'known to be of a whole machine'}"
            raise SensorError(f"{sysfs}/class/hwmon: {why}; expected one, hwmon:NAME of these: {named}")
        (self._folder,) = fitting
        self.device, self.place = f"hwmon-{found[self._folder][-1]}", str(self._folder)
        accuracy = _line(self._folder / "power1_accuracy").removesuffix("%")
        if re.fullmatch(r"\d+(\.\d+)?", accuracy) and 0 < float(accuracy) < 100:
            self.error_share = 1 - float(accuracy) / 100

    def read(self) -> MeterValue:
        """Return the counter (energy1_input, µJ) and the power (power1_average or power1_input, µW)."""
        energy, average, power = (self._value(file) for file in ("energy1_input", "power1_average", "power1_input"))
        return MeterValue(power if average is None else average, energy, 1e-6)

    def _value(self, file: str) -> float | None:
        path = self._folder / file
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SensorError(f"{path}: {error}") from error
        if not text.isdigit():
            raise SensorError(f"{path}: holds {text[:40]!r}, expected a whole number")
        return int(text) * 1e-6


class IpmiMeter(Meter):
    """The power reading of IPMI DCMI, through ipmitool or FreeIPMI's ipmi-dcmi."""

    kind = "ipmi"
    device = "ipmi"
    _COMMANDS: Final = (("ipmitool", "dcmi", "power", "reading"), ("ipmi-dcmi", "--get-system-power-statistics"))
    _SHOWN: Final = re.compile(r"^\s*(?:Instantaneous power reading|Current Power)\s*:\s*(\d+)\s+Watts", re.M)
    _OFF: Final = re.compile(r"^\s*Power (?:reading state is|Measurement)\s*:\s*(deactivated|Not Available)", re.M)

    def read(self) -> MeterValue:
        """Return the power of the moment, which a controller updates every second or slower."""
        for argv in self._COMMANDS:
            try:
                with Child(argv, stdin=subprocess.DEVNULL, keep_stderr=True, killed_with_parent=False) as child:
                    output = child.finish(_PROGRAM_S)
                    words = f"status {child.process.poll()}: {child.stderr_lines(1)}"
            except FileNotFoundError:
                continue
            except (OSError, ChildError) as error:
                raise SensorError(f"{argv[0]}: {error}") from error
            self.place = " ".join(argv)
            if output is None:
                raise SensorError(f"{self.place}: no answer within {_PROGRAM_S:g} s")
            text = output.decode(errors="replace")
            found = self._SHOWN.search(text)
            if found is None or self._OFF.search(text):
                shown = " ".join(text.split())[:80] or words
                raise SensorError(f"{self.place}: shows no power ({shown}); it needs root and a controller with DCMI")
            return MeterValue(float(found[1]), None)
        programs = " nor ".join(argv[0] for argv in self._COMMANDS)
        raise SensorError(f"ipmi: neither {programs} is installed; install ipmitool or freeipmi-tools")


class _HttpMeter(Meter):
    """A meter that answers in JSON over HTTP."""

    schemes: ClassVar[Sequence[str]] = ("http", "https")

    def __init__(self, url: str, auth: Path | None = None, ca: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.port != 0 else None
        except ValueError:
            host = None
        if not host or parts.scheme not in self.schemes or "@" in parts.netloc:
            # Not shown: it may hold a password.
            wanted = " or ".join(f"{scheme}://" for scheme in self.schemes)
            raise OptionError(f"--wall {self.kind}: expected {wanted}HOST after the colon, without user and password")
        self.place, self.device = url.rstrip("/"), f"{self.kind}-{parts.netloc}"
        try:
            tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca))
        except OSError as error:
            raise OptionError(f"--wall-ca {ca}: {error.strerror or error}; expected certificates, PEM") from error
        # No proxy and no redirect: a meter is asked at the address that was named, and the password goes there alone.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect(), tls)
        self._auth = auth

    def credentials(self) -> str | None:
        """Return USER:PASSWORD, or None for none."""
        return None

    def get(self, path: str) -> Any:
        """Return the JSON at a path; floats are Decimals. Raises SensorError."""
        url = urljoin(f"{self.place}/", path)
        headers = {"Accept": "application/json"}
        if (told := self.credentials()) is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(told.encode()).decode()}"
        body, deadline = b"", time.monotonic() + _ANSWER_S
        try:
            with self._opener.open(urllib.request.Request(url, headers=headers), timeout=_ANSWER_S) as answer:  # noqa: S310
                while chunk := answer.read1(_MAX_BYTES):
                    body += chunk
                    if time.monotonic() > deadline or len(body) > _MAX_BYTES:
                        raise SensorError(f"{url}: the answer takes more than {_ANSWER_S:g} s or {_MAX_BYTES} bytes")
            return json.loads(body, parse_float=Decimal)
        except HTTPError as error:
            with error:
                raise _StatusError(f"{url}: status {error.code}{self._refused(error.code)}", error.code) from None
        except (OSError, HTTPException) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise SensorError(f"{url}: {why or type(error).__name__}") from None
        except (ValueError, RecursionError):
            raise SensorError(f"{url}: answers {body[:40]!r}, expected JSON") from None

    def _refused(self, code: int) -> str:
        return ": it asks for a password, and energymon sends none to a plug" if code == 401 else ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _StatusError(SensorError):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class RedfishMeter(_HttpMeter):
    """A chassis of a Redfish service: EnvironmentMetrics, or the older Power (DMTF DSP0268)."""

    kind = "redfish"
    schemes = ("https",)

    def __init__(self, url: str, auth: Path | None = None, ca: Path | None = None) -> None:
        """Take the address of the service, or that of a chassis below it where it has several with a power."""
        super().__init__(url, auth, ca)
        path = urlsplit(self.place).path
        members = [path] if path else [_at(m, "@odata.id") for m in _at(self.get("/redfish/v1/Chassis"), "Members")]
        found: list[str] = []
        for member in members:
            for resource in (f"{member}/EnvironmentMetrics", f"{member}/Power"):
                try:
                    self._resource = resource
                    self.read()
                except SensorError as error:
                    if isinstance(error, _StatusError) and error.code == 401:
                        raise
                    last = error
                else:
                    found.append(resource)
                    break
        if len(found) != 1:
            several = f"{', '.join(found)} have a power; name the address of one" if found else f"no power: {last}"
            raise SensorError(f"{self.place}: {several}")
        (self._resource,) = found

    def credentials(self) -> str | None:
        """Return what the file or the environment holds now, so that a password may be changed."""
        try:
            told = os.environ.get(AUTH, "") if self._auth is None else self._auth.read_text().strip()
        except (OSError, ValueError) as error:
            raise SensorError(f"--wall-auth {self._auth}: cannot be read; expected a line USER:PASSWORD") from error
        return told or None

    def read(self) -> MeterValue:
        """Return the power, and the energy where it is counted in joules or in fine steps of kWh."""
        shown = self.get(self._resource)
        if self._resource.endswith("/Power"):
            (control, *_) = _at(shown, "PowerControl") or [{}]
            return MeterValue(_number(control, "PowerConsumedWatts"), None)
        watts = _number(shown, "PowerWatts", "Reading")
        for name, unit_j in (("EnergyJoules", 1.0), ("EnergykWh", _J_PER_KWH)):
            if isinstance(shown.get(name), dict) and shown[name].get("Reading") is not None:
                return _counted(watts, _at(shown, name, "Reading"), unit_j)
        return MeterValue(watts, None)

    def _refused(self, code: int) -> str:
        return f": expected USER:PASSWORD in --wall-auth FILE or {AUTH}" if code in (401, 403) else ""


class TasmotaMeter(_HttpMeter):
    """A plug with Tasmota (tasmota.github.io/docs/Commands, Status 10)."""

    kind = "tasmota"

    def read(self) -> MeterValue:
        """Return the power, and the energy, kWh, of which `EnergyRes` sets the digits."""
        energy = _at(self.get("cm?cmnd=Status%2010"), "StatusSNS", "ENERGY")
        return _counted(_number(energy, "Power"), _at(energy, "Total"), _J_PER_KWH)


class ShellyMeter(_HttpMeter):
    """A plug by Shelly, of any generation (shelly-api-docs.shelly.cloud)."""

    kind = "shelly"
    _PATHS: Final = ("rpc/Switch.GetStatus?id=0", "rpc/PM1.GetStatus?id=0", "meter/0")
    _path = ""

    def read(self) -> MeterValue:
        """Return the power, and the energy: Wh of three digits, or Watt-minutes of the first generation."""
        for path in [self._path] if self._path else self._PATHS:
            try:
                shown = self.get(path)
            except _StatusError as error:
                if error.code == 404 and path != self._PATHS[-1]:
                    continue
                raise
            self._path = path
            break
        if not self._path.startswith("meter"):
            total = _number(shown, "aenergy", "total") * _J_PER_KWH / 1e3
            return MeterValue(_number(shown, "apower"), total, _J_PER_KWH / 1e6)
        if shown.get("is_valid") is not True:
            raise SensorError(f"{self.place}/{self._path}: is_valid is {shown.get('is_valid')}, expected true")
        return MeterValue(_number(shown, "power"), _number(shown, "total") * 60, 60.0)


def _counted(watts: float, shown: Any, unit_j: float) -> MeterValue:
    """Return the value of a counter whose last digit is a step."""
    digits = -shown.as_tuple().exponent if isinstance(shown, Decimal) else 0
    return MeterValue(watts, _number({"": shown}, "") * unit_j, unit_j / 10**digits)


def _at(data: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(data, dict) or key not in data:
            raise SensorError(f"the answer has no {'.'.join(keys)}: {str(data)[:80]}")
        data = data[key]
    return data


def _number(data: Any, *keys: str) -> float:
    value = _at(data, *keys)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or not 0 <= value < 10**15:
        raise SensorError(f"{'.'.join(keys)} of the answer is {str(value)[:40]!r}, expected a number of 0 or more")
    return float(value)


def _line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def open_meter(source: str, sysfs: Path, auth: Path | None, ca: Path | None) -> Meter:
    """Return the meter that --wall names; raises OptionError for a name that is none, and SensorError."""
    kind, _, rest = source.partition(":")
    match kind:
        case "hwmon":
            return HwmonMeter(rest, sysfs)
        case "ipmi" if not rest:
            return IpmiMeter()
        case "redfish":
            return RedfishMeter(rest, auth, ca)
        case "tasmota":
            return TasmotaMeter(rest, None, ca)
        case "shelly":
            return ShellyMeter(rest, None, ca)
    raise OptionError(f"--wall {kind}: expected hwmon, hwmon:NAME, ipmi, redfish:URL, tasmota:URL or shelly:URL")
