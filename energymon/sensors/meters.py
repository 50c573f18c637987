"""Meters of what a whole machine draws at its supply: hwmon, IPMI DCMI, Redfish, and plugs of Tasmota and Shelly.

A meter's `read` takes seconds at most, and raises SensorError, which names the question and the expected answer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import time
from abc import ABC, abstractmethod
from decimal import Decimal
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from energymon.errors import OptionError, SensorError
from energymon.sensors.base import line_of
from joulefeed.child import Child, ChildError
from joulefeed.closing import receives_for

AUTH: Final = "ENERGYMON_WALL_AUTH"
"""Environment variable with USER:PASSWORD of a Redfish service."""
_ANSWER_S: Final = 5.0
"""How long one answer over HTTP may take in all."""
_PROGRAM_S: Final = 10.0
_MAX_BYTES: Final = 2**18
_WHOLE_MACHINE: Final = frozenset({"power_meter", "ibmaem"})
"""Drivers of hwmon whose meters are of machines (Linux, Documentation/hwmon)."""
_HWMON_FILES: Final = ("energy1_input", "power1_average", "power1_input")
_COMMANDS: Final = (("ipmitool", "dcmi", "power", "reading"), ("ipmi-dcmi", "--get-system-power-statistics"))
_WATTS: Final = re.compile(r"^\s*(?:Instantaneous power reading|Current Power)\s*:\s*(\d+)\s+Watts", re.M)
_OFF: Final = re.compile(r"^\s*Power (?:reading state is|Measurement)\s*:\s*(deactivated|Not Available)", re.M)


class MeterValue(NamedTuple):
    """What a meter shows."""

    watts: float | None
    joules: float | None = None
    """Cumulative; None where it counts no energy."""
    unit_j: float = 0.0
    """Joules of one step of the counter."""


class WallMeter(ABC):
    """One meter: its kind, its name in the readings, and where it is read, for messages."""

    kind: ClassVar[str]
    device: str
    place: str
    error_share: float | None = None
    """Error of its joules as its maker states it, 0 to 1; None where it does not."""

    @abstractmethod
    def read(self) -> MeterValue:
        """Ask it once; raises SensorError."""


class HwmonMeter(WallMeter):
    """A power meter of the kernel's hwmon: energy1_input, µJ, and power1_average or power1_input, µW."""

    kind = "hwmon"

    def __init__(self, name: str, sysfs: Path) -> None:
        """Take its folder's, driver's or label's name; "" for the only meter of a machine."""
        found: dict[Path, list[str]] = {}
        # Drivers of the older interface have their files in the device.
        entries = sorted((sysfs / "class" / "hwmon").glob("hwmon*"))
        for entry, folder in [(entry, entry / there) for entry in entries for there in (".", "device")]:
            if any((folder / file).exists() for file in _HWMON_FILES):
                names = [line_of(folder / file) for file in ("name", "power1_label", "power1_oem_info")]
                found[folder] = [entry.name, *filter(None, names)]
        fitting = [folder for folder, names in found.items() if ({name} if name else _WHOLE_MACHINE) & set(names)]
        if len(fitting) != 1:
            named = "; ".join(" ".join(names) for names in found.values()) or "none"
            why = f"{len(fitting)} meters are {name or 'known to be of a whole machine'}"
            raise SensorError(f"{sysfs}/class/hwmon: {why}; expected one, hwmon:NAME of these: {named}")
        (self._folder,) = fitting
        self.device, self.place = f"hwmon-{found[self._folder][-1]}", str(self._folder)
        accuracy = line_of(self._folder / "power1_accuracy").removesuffix("%")
        if re.fullmatch(r"\d+(\.\d+)?", accuracy) and 0 < float(accuracy) < 100:
            self.error_share = 1 - float(accuracy) / 100

    def read(self) -> MeterValue:
        """Read its files."""
        shown: dict[str, float] = {}
        for file in _HWMON_FILES:
            path = self._folder / file
            try:
                text = path.read_text(errors="replace").strip()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SensorError(f"{path}: {error.strerror}") from error
            if not text.isdecimal():
                raise SensorError(f"{path}: holds {text[:40]!r}, expected a whole number")
            shown[file] = int(text) * 1e-6
        energy, average, power = (shown.get(file) for file in _HWMON_FILES)
        return MeterValue(power if average is None else average, energy, 1e-6)


class IpmiMeter(WallMeter):
    """The power reading of IPMI DCMI, through ipmitool or FreeIPMI's ipmi-dcmi."""

    kind = device = place = "ipmi"

    def read(self) -> MeterValue:
        """Return the power of the moment, which a controller updates every second or slower."""
        for argv in _COMMANDS:
            try:
                with Child(argv, stdin=subprocess.DEVNULL, keep_stderr=True) as child:
                    output, self.place = child.finish(_PROGRAM_S), " ".join(argv)
                    shown = " ".join((output or b"").decode(errors="replace").split()) or child.stderr_lines(1)
            except FileNotFoundError:
                continue
            except (OSError, ChildError) as error:
                raise SensorError(f"{argv[0]}: {error}") from error
            if output is None:
                raise SensorError(f"{self.place}: no answer within {_PROGRAM_S:g} s")
            text = output.decode(errors="replace")
            if (found := _WATTS.search(text)) is None or _OFF.search(text):
                raise SensorError(f"{self.place}: shows no power ({shown[:80]}); it needs root and DCMI")
            return MeterValue(float(found[1]))
        raise SensorError("neither ipmitool nor ipmi-dcmi is installed; install ipmitool or freeipmi-tools")


class HttpMeter(WallMeter):
    """A meter that answers in JSON; a step of its counter is the last digit that it shows."""

    scheme: ClassVar[str] = "http"
    """The least that its address must have: https, where a password is sent."""
    expected: ClassVar[str] = "such a plug, without a password"
    answers: tuple[tuple[str, str, str, float], ...]
    """Paths that may have the power, W, and the energy: path, their keys, and the joules of the energy's unit."""

    def __init__(self, url: str, ca: Path | None = None, auth: Path | None = None) -> None:
        try:
            self._parts = urlsplit(url)
            is_known = self._parts.hostname and self._parts.port != 0 and not set(url) & set("@?#")
        except ValueError:
            is_known = False
        if not is_known or self._parts.scheme not in (self.scheme, "https"):
            # Not shown: it may hold a password, as Tasmota's ?user=admin&password=… does.
            raise OptionError(f"--wall {self.kind}: expected {self.scheme}://HOST behind the colon, without a password")
        self.place, self.device, self._auth = url.rstrip("/"), f"{self.kind}-{self._parts.netloc}", auth
        try:
            self._tls = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise OptionError(f"--wall-ca {ca}: {error.strerror or error}; expected certificates, PEM") from error

    def read(self) -> MeterValue:
        """Return the power and the energy of the first path that has a power, which is the only one from then on."""
        for answer in self.answers:
            path, power, energy, unit_j = answer
            data = self.get(path, is_last=answer == self.answers[-1])
            if _at(data, power) is not None:
                self.answers = (answer,)
                break
        if _at(data, "is_valid") is False:
            raise SensorError(f"{self.place}/{path}: says that its value is not valid")
        watts = float(_number(data, power))
        if _at(data, energy) is None:
            return MeterValue(watts)
        counted = Decimal(_number(data, energy))
        return MeterValue(watts, float(counted) * unit_j, unit_j * 10.0 ** int(counted.as_tuple().exponent))

    def get(self, path: str, *, is_last: bool = True) -> Any:
        """Return the JSON at a path, its floats as Decimals; None where the path is not there and not the last one."""
        scheme, host, own, *_ = self._parts
        path, headers = urljoin(f"{own.rstrip('/')}/", path), {"Accept": "application/json"}
        if self.scheme == "https" and (told := self._credentials()):
            headers["Authorization"] = f"Basic {base64.b64encode(told.encode()).decode()}"
        # http.client takes no proxy and follows no redirect: the password goes to the address that was named alone.
        asked = HTTPSConnection(host, context=self._tls) if scheme == "https" else HTTPConnection(host)
        asked.timeout, url = _ANSWER_S, f"{scheme}://{host}{path}"
        body, deadline = b"", time.monotonic() + _ANSWER_S
        too_long = SensorError(f"{url}: the answer takes more than {_ANSWER_S:g} s or {_MAX_BYTES} bytes")
        try:
            asked.connect()
            with receives_for(asked.sock, _ANSWER_S):
                asked.request("GET", path, headers=headers)
                answer = asked.getresponse()
                while len(body) <= _MAX_BYTES and (chunk := answer.read1(_MAX_BYTES)):
                    body += chunk
            if time.monotonic() > deadline or len(body) > _MAX_BYTES:
                raise too_long
            if answer.status == 404 and not is_last:
                return None
            if answer.status != 200:
                raise SensorError(f"{url}: status {answer.status}; expected {self.expected}")
            return json.loads(body, parse_float=Decimal)
        except (OSError, HTTPException) as error:
            is_late = time.monotonic() > deadline
            raise too_long if is_late else SensorError(f"{url}: {error or type(error).__name__}") from None
        except (ValueError, RecursionError):
            raise SensorError(f"{url}: answers {body[:40]!r}, expected JSON") from None
        finally:
            asked.close()

    def _credentials(self) -> str:
        """Return what the file or the environment holds now, so that a password may be changed."""
        try:
            return os.environ.get(AUTH, "") if self._auth is None else self._auth.read_text().strip()
        except (OSError, ValueError) as error:
            raise SensorError(f"--wall-auth {self._auth}: cannot be read; expected a line USER:PASSWORD") from error


class TasmotaMeter(HttpMeter):
    """A plug with Tasmota (tasmota.github.io/docs/Commands: Status 10, and EnergyRes for the digits of its kWh)."""

    kind = "tasmota"
    answers = (("cm?cmnd=Status%2010", "StatusSNS.ENERGY.Power", "StatusSNS.ENERGY.Total", 3.6e6),)


class ShellyMeter(HttpMeter):
    """A plug by Shelly (shelly-api-docs.shelly.cloud): Wh, or Watt-minutes of the first generation."""

    kind = "shelly"
    answers = (
        ("rpc/Switch.GetStatus?id=0", "apower", "aenergy.total", 3600.0),
        ("rpc/PM1.GetStatus?id=0", "apower", "aenergy.total", 3600.0),
        ("meter/0", "power", "total", 60.0),
    )


class RedfishMeter(HttpMeter):
    """A chassis of a Redfish service: EnvironmentMetrics, or the older Power (DMTF DSP0268)."""

    kind = "redfish"
    scheme = "https"
    expected = f"a chassis, https://BMC/redfish/v1/Chassis/NAME, and USER:PASSWORD in --wall-auth FILE or {AUTH}"
    answers = (
        ("EnvironmentMetrics", "PowerWatts.Reading", "EnergyJoules.Reading", 1.0),
        ("Power", "PowerControl.0.PowerConsumedWatts", "", 1.0),
    )


def _at(data: Any, keys: str) -> Any:
    """Return the value below keys, joined by dots where they are several; None where there is none."""
    for key in keys.split("."):
        data = data.get(key) if isinstance(data, dict) else data[0] if isinstance(data, list) and data else None
    return data


def _number(data: Any, keys: str) -> int | Decimal:
    value = _at(data, keys)
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < 10**15:
        raise SensorError(f"{keys} is {str(value)[:40]!r} in {str(data)[:80]}; expected a number of 0 or more")
    return value


def open_meter(source: str, sysfs: Path, auth: Path | None, ca: Path | None) -> WallMeter:
    """Return the meter that --wall names; raises OptionError for a name that is none, and SensorError."""
    kind, _, rest = source.partition(":")
    if kind == "hwmon":
        return HwmonMeter(rest, sysfs)
    if source == "ipmi":
        return IpmiMeter()
    for made in (RedfishMeter, TasmotaMeter, ShellyMeter):
        if kind == made.kind:
            return made(rest, ca, auth)
    raise OptionError(f"--wall {kind}: expected hwmon, hwmon:NAME, ipmi, redfish:URL, tasmota:URL or shelly:URL")
