"""Meters at the wall, against recorded answers, a real server, a fake ipmitool and a tree of hwmon."""

import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing, suppress

import pytest

from energymon import Agent, SqliteStore, query
from energymon.__main__ import main
from energymon.agent import process
from energymon.errors import OptionError, SensorError
from energymon.reading import START
from energymon.sensors import meters, wall
from energymon.sensors.discover import SensorConfig, discover
from energymon.sensors.meters import open_meter
from energymon.sensors.wall import WallSensor
from tests.energymon import trees
from tests.energymon.conftest import wait_for

TASMOTA = """{"StatusSNS":{"Time":"2018-11-15T08:54:18","ENERGY":{"TotalStartTime":"2018-11-14T18:39:40",
"Total":6.40412,"Yesterday":5.340,"Today":1.064,"Power":2629,"ApparentPower":2645,"ReactivePower":288,"Factor":0.99,"Voltage":226,
"Current":11.677}}}"""
GEN1 = '{"power":48.52,"overpower":0.00,"is_valid":true,"timestamp":1606215925,"counters":[48.663, 48.776],"total":394}'
GEN2 = """{"id":0, "source":"HTTP", "output":true, "apower":47.11, "voltage":232.0, "current":0.203, "pf":0.00,
"aenergy":{"total":5.125,"by_minute":[0.000,0.000,0.000],"minute_ts":1675718520},
"temperature":{"tC":25.3, "tF":77.5}}"""
METRICS = """{"@odata.type":"#EnvironmentMetrics.v1_3_1.EnvironmentMetrics","PowerWatts":{"Reading":374,
"DataSourceUri":"/redfish/v1/Chassis/1U/Sensors/TotalPower"},"EnergyJoules":{"Reading":16632000}}"""
POWER = '{"@odata.type":"#Power.v1_2_0.Power","PowerControl":[{"MemberId":"0","PowerConsumedWatts":344}]}'
IPMITOOL = """
    Instantaneous power reading:                   173 Watts
    Minimum during sampling period:                  0 Watts
    Maximum during sampling period:               1023 Watts
    Average power reading over sample period:      138 Watts
    IPMI timestamp:                           Thu Aug  1 13:46:34 2024
    Sampling period:                          00010824 Seconds.
    Power reading state is:                   activated
"""
FREEIPMI = """Current Power                        : 332 Watts
Minimum Power over sampling duration : 68 watts
Maximum Power over sampling duration : 504 watts
Average Power over sampling duration : 348 watts
Power Measurement                    : Active
"""


class Plug:
    """A server on loopback that answers the paths it has, with a status, at once or slowly."""

    def __init__(self, answers, tls=None):
        self.answers, self.status, self.wait_s, self.asked = answers, 200, 0.0, []
        plug = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                plug.asked.append((self.path, self.headers.get("Authorization")))
                text = plug.answers.get(self.path)
                text = text() if callable(text) else text
                self.send_response(404 if text is None else plug.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                for byte in (text or "").encode():
                    self.wfile.write(bytes([byte]))
                    if plug.wait_s:
                        self.wfile.flush()
                        time.sleep(plug.wait_s)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve():
    plugs = []

    def make(answers, tls=None):
        plugs.append(Plug(answers, tls))
        return plugs[-1]

    yield make
    for plug in plugs:
        plug.close()


def opened(source, sysfs="/sys", auth=None, ca=None):
    return open_meter(source, trees.Path(sysfs), auth, ca)


STATUS = "/cm?cmnd=Status%2010"
SWITCH = "/rpc/Switch.GetStatus?id=0"


@pytest.mark.parametrize(
    ("kind", "path", "answer", "watts", "joules", "unit_j"),
    [
        ("tasmota", STATUS, TASMOTA, 2629, 6.40412 * 3.6e6, 36),
        ("tasmota", STATUS, TASMOTA.replace("6.40412", "6.404"), 2629, 6.404 * 3.6e6, 3600),
        ("shelly", SWITCH, GEN2, 47.11, 5.125 * 3600, 3.6),
        ("shelly", "/rpc/PM1.GetStatus?id=0", GEN2, 47.11, 5.125 * 3600, 3.6),
        ("shelly", "/meter/0", GEN1, 48.52, 394 * 60, 60),
    ],
)
def test_a_plug_shows_its_power_and_its_energy(serve, kind, path, answer, watts, joules, unit_j):
    meter = opened(f"{kind}:{serve({path: answer}).url}/")
    for _ in range(2):
        shown = meter.read()
        assert (shown.watts, shown.joules, shown.unit_j) == pytest.approx((watts, joules, unit_j))


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        ("<html>hello", 200, "expected JSON"),
        ("", 200, "expected JSON"),
        ("[" * 100_000, 200, "expected JSON"),
        ("[]", 200, "StatusSNS.ENERGY.Power is 'None' in []; expected a number"),
        ('{"StatusSNS":{"Time":"x"}}', 200, "StatusSNS.ENERGY.Power is 'None'"),
        (TASMOTA.replace("2629", "[12, 0]"), 200, "Power is '[12, 0]'"),
        (TASMOTA.replace("2629", "-3"), 200, "expected a number of 0 or more"),
        (TASMOTA.replace("2629", "NaN"), 200, "expected a number of 0 or more"),
        (TASMOTA.replace("2629", "true"), 200, "expected a number of 0 or more"),
        (TASMOTA.replace("6.40412", '"6"'), 200, "expected a number of 0 or more"),
        (" " * 2**19, 200, "takes more than"),
        (TASMOTA, 401, "status 401; expected such a plug, without a password"),
        (TASMOTA, 302, "status 302"),
        (TASMOTA, 500, "status 500"),
    ],
)
def test_what_a_plug_should_not_say_is_no_figure_and_said(serve, answer, status, why):
    plug = serve({STATUS: answer, "/elsewhere": TASMOTA})
    plug.status = status
    with pytest.raises(SensorError) as error:
        opened(f"tasmota:{plug.url}").read()
    assert why in str(error.value)


def test_a_shelly_that_says_its_value_is_not_valid_has_none(serve):
    with pytest.raises(SensorError, match="its value is not valid"):
        opened(f"shelly:{serve({'/meter/0': GEN1.replace('true', 'false')}).url}").read()


def test_an_answer_that_drips_or_does_not_come_takes_seconds_at_most(serve, monkeypatch):
    monkeypatch.setattr(meters, "_ANSWER_S", 0.3)
    plug = serve({STATUS: TASMOTA, "/silent": lambda: time.sleep(5)})
    plug.wait_s = 0.1
    with pytest.raises(SensorError, match=r"takes more than 0.3 s"):
        opened(f"tasmota:{plug.url}").read()
    plug.answers[STATUS] = plug.answers["/silent"]
    with pytest.raises(SensorError, match=r"takes more than 0.3 s"):
        opened(f"tasmota:{plug.url}").read()


def test_headers_that_drip_take_seconds_at_most(monkeypatch):
    monkeypatch.setattr(meters, "_ANSWER_S", 0.3)

    def drip():
        client, _ = listener.accept()
        with closing(client), suppress(OSError):
            client.sendall(b"HTTP/1.0 200 OK\r\n")
            for _ in range(600):
                client.sendall(b"X: y\r\n")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(SensorError, match=r"takes more than 0.3 s"):
            opened(f"tasmota:http://127.0.0.1:{listener.getsockname()[1]}").read()


@pytest.mark.parametrize(
    "source",
    [
        *("plug", "tasmota", "tasmota:", "tasmota:plug", "tasmota:ftp://plug", "shelly:http://plug:99999"),
        *("redfish:http://bmc", "ipmi:host", "shelly:http://me:secret@plug"),
        *("tasmota:http://plug/?user=me&password=secret", "shelly:http://plug/#secret"),
    ],
)
def test_a_name_of_no_meter_is_refused_and_a_password_is_not_shown(source):
    with pytest.raises(OptionError, match="--wall") as error:
        opened(source)
    assert "secret" not in str(error.value)


def test_a_meter_at_the_wall_is_too_slow_to_be_calibrated(capsys):
    assert main(["calibrate", "--wall", "ipmi"]) == 2
    assert "shows no edge of a load" in capsys.readouterr().err


def test_several_meters_are_plugs_of_as_many_supplies():
    assert SensorConfig(wall=("tasmota:http://a", "shelly:http://b")).wall
    with pytest.raises(OptionError, match="a plug for each"):
        SensorConfig(wall=("ipmi", "shelly:http://b")).check()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A certificate for localhost that nobody has signed, and the context of a server with it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


CHASSIS = "/redfish/v1/Chassis/1U"


def test_redfish_is_asked_with_the_password_of_a_file_and_its_certificate_is_checked(serve, tls, tmp_path):
    cert, context = tls
    bmc, auth = serve({f"{CHASSIS}/EnvironmentMetrics": METRICS}, context), tmp_path / "auth"
    auth.write_text("root:calvin\n")
    chassis = f"redfish:{bmc.url}{CHASSIS}"
    with pytest.raises(SensorError, match="certificate verify failed"):
        opened(chassis, auth=auth).read()
    assert bmc.asked == [], "no password goes to a server that is not known"
    assert opened(chassis, auth=auth, ca=cert).read() == (374, 16632000, 1)
    assert {told for _, told in bmc.asked} == {"Basic cm9vdDpjYWx2aW4="}
    with pytest.raises(OptionError, match="expected certificates"):
        opened(chassis, ca=auth)


def test_redfish_names_the_missing_part_and_never_the_password(serve, tls, tmp_path, monkeypatch):
    cert, context = tls
    monkeypatch.setenv("ENERGYMON_WALL_AUTH", "root:secret")
    bmc = serve({f"{CHASSIS}/Power": POWER}, context)
    chassis = f"redfish:{bmc.url}{CHASSIS}"
    assert opened(chassis, ca=cert).read() == (344, None, 0)
    bmc.answers[f"{CHASSIS}/EnvironmentMetrics"] = '{"TemperatureCelsius":{"Reading":39}}'
    assert opened(chassis, ca=cert).read().watts == 344, "its metrics have no power"
    bmc.status = 401
    with pytest.raises(
        SensorError, match=r"status 401; expected a chassis.* and USER:PASSWORD in --wall-auth"
    ) as error:
        opened(chassis, ca=cert).read()
    assert "secret" not in str(error.value)
    with pytest.raises(SensorError, match="Power: status 404; expected a chassis, https://BMC/redfish/v1/Chassis/NAME"):
        opened(f"redfish:{bmc.url}", ca=cert).read()
    with pytest.raises(SensorError, match="cannot be read; expected a line USER:PASSWORD"):
        opened(chassis, auth=tmp_path / "none", ca=cert).read()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Write fake programs that stand alone on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.mark.parametrize(("name", "shown", "watts"), [("ipmitool", IPMITOOL, 173), ("ipmi-dcmi", FREEIPMI, 332)])
def test_dcmi_is_read_through_either_program(programs, name, shown, watts):
    programs(name, f"/bin/cat <<'.'\n{shown}\n.")
    assert opened("ipmi").read() == (watts, None, 0.0)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Could not open device at /dev/ipmi0' >&2; exit 1", "Could not open device at /dev/ipmi0"),
        (f"/bin/cat <<'.'\n{IPMITOOL.replace(' activated', ' deactivated')}\n.", "shows no power"),
        ("/bin/sleep 20", "no answer within 0.3 s"),
        ("/bin/sleep 20 & exit 0", "no answer within 0.3 s"),
    ],
)
def test_a_controller_without_an_answer_is_no_figure_and_said(programs, monkeypatch, script, why):
    monkeypatch.setattr(meters, "_PROGRAM_S", 0.3)
    programs("ipmitool", script)
    with pytest.raises(SensorError) as error:
        opened("ipmi").read()
    assert why in str(error.value)


def test_without_a_program_the_meter_says_what_to_install(programs):
    with pytest.raises(SensorError, match="install ipmitool or freeipmi-tools"):
        opened("ipmi").read()


def hwmon(root, number, **files):
    folder = root / "class" / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_hwmon_takes_the_only_meter_of_a_machine_or_the_one_that_is_named(tmp_path):
    hwmon(tmp_path, 0, name="nvme", temp1_input=40)
    acpi = hwmon(tmp_path, 1, name="power_meter", power1_average=251_000_000, power1_accuracy="90.0%")
    meter = opened("hwmon", tmp_path)
    assert (meter.read().watts, meter.device) == (251.0, "hwmon-power_meter")
    assert meter.error_share == pytest.approx(0.1)
    hwmon(tmp_path, 2, name="pmbus", power1_input=90_000_000, power1_label="pin", energy1_input=5_000_000)
    assert opened("hwmon", tmp_path).read().watts == 251.0
    assert opened("hwmon:pin", tmp_path).read() == (90.0, 5.0, 1e-6)
    hwmon(tmp_path, 3, name="power_meter", power1_average=1, power1_oem_info="Grace Power Socket 0")
    with pytest.raises(SensorError, match=r"2 meters .* expected one, hwmon:NAME of these: .*Grace Power Socket 0"):
        opened("hwmon", tmp_path)
    assert opened("hwmon:hwmon1", tmp_path).read().watts == 251.0
    (acpi / "power1_average").write_text("unknown\n")
    with pytest.raises(SensorError, match="holds 'unknown', expected a whole number"):
        opened("hwmon:hwmon1", tmp_path).read()


def test_a_machine_without_a_meter_names_what_it_has(tmp_path):
    with pytest.raises(SensorError, match="0 meters are known to be of a whole machine"):
        opened("hwmon", tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """Meters are asked twenty times a second."""
    monkeypatch.setattr(wall, "WALL_S", 0.05)


def sense(plug_url, kind="shelly"):
    return WallSensor(opened(f"{kind}:{plug_url}"))


def points(sensor):
    return sensor.decode(sensor.sample(), 0)


class Meter:
    """What a Shelly of 1 kW shows."""

    def __init__(self, since_j=0.0):
        self.start_s, self.since_j = time.monotonic(), since_j

    def joules(self):
        return self.since_j + 1000 * (time.monotonic() - self.start_s)

    def __call__(self):
        return json.dumps({"apower": 1000.0, "aenergy": {"total": round(self.joules() / 3600, 3)}})


def test_ticks_get_the_latest_answer_at_its_own_time(serve, quick):
    meter = Meter()
    sensor = sense(serve({SWITCH: meter}).url)
    first = points(sensor)
    assert [p.channel.source for p in first] == ["shelly-energy", "shelly-power"]
    assert [(p.joules, p.flags) for p in first] == [(0.0, START)] * 2
    again = points(sensor)
    assert [(p.t_ns, p.joules, p.flags) for p in again] == [(p.t_ns, 0.0, "") for p in first]
    later = wait_for(lambda: (found := points(sensor)) and found[0].joules > 100 and found)
    elapsed_s = (later[1].t_ns - first[1].t_ns) / 1e9
    assert later[1].joules == pytest.approx(1000 * elapsed_s)
    span_j = (later[0].early_ns + later[0].late_ns + first[0].late_ns) * 1000 / 1e9 + 3.6
    assert later[0].joules == pytest.approx(1000 * elapsed_s, abs=span_j)
    assert sensor.operations()[0].fd >= 0, "compiled code can read it"
    sensor.close()
    sensor.close()


def test_a_plug_that_is_gone_is_lost_and_comes_back_with_the_joules_it_has_counted(serve, quick):
    meter = Meter(since_j=2e7)
    plug = serve({SWITCH: meter})
    sensor = sense(plug.url)
    before = points(sensor)
    plug.status = 500
    lost = wait_for(lambda: [p for p in points(sensor) if p.joules is None])
    assert "status 500" in lost[0].problem
    assert all(p.joules is None for p in points(sensor)), "an old value is not shown again"
    time.sleep(0.3)
    plug.status = 200
    # On a busy machine a sample may come between the two values.
    counted, power = wait_for(
        lambda: two if len(two := [p for p in points(sensor) if p.joules is not None]) == 2 else None
    )
    elapsed_j = 1000 * (counted.t_ns - before[0].t_ns) / 1e9
    assert counted.joules == pytest.approx(elapsed_j, abs=(counted.early_ns + before[0].late_ns) / 1e6 + 3.6)
    assert (counted.flags, power.flags) == ("", START), "nothing counted its power meanwhile"
    sensor.close()


def test_a_thread_that_hangs_is_said_and_holds_up_nobody(serve, quick, monkeypatch):
    plug = serve({SWITCH: Meter()})
    sensor = sense(plug.url)
    points(sensor)
    release = threading.Event()
    monkeypatch.setattr(meters.ShellyMeter, "read", lambda self: release.wait(60) and meters.MeterValue(None))
    time.sleep(0.2)
    points(sensor)
    later_ns = time.monotonic_ns() + 60_000_000_000
    raw = [later_ns, sensor.sample()[1], later_ns]
    begin_s = time.monotonic()
    found = sensor.decode(raw, 0)
    assert [p.joules for p in found] == [None, None]
    assert "no answer for" in found[0].problem
    assert sensor.decode(raw, 0) == []
    sensor.close()
    assert time.monotonic() - begin_s < 5
    release.set()


def test_a_counter_of_large_steps_leaves_the_power(serve):
    sensor = sense(serve({STATUS: TASMOTA.replace("6.40412", "6.404")}).url, "tasmota")
    assert [c.source for c in sensor.channels] == ["tasmota-power"]
    sensor.close()


def test_a_meter_that_was_asked_for_and_does_not_answer_ends_the_start(serve, tmp_path):
    plug = serve({})
    with pytest.raises(SensorError, match="status 404; expected such a plug"):
        discover(SensorConfig(wall=(f"tasmota:{plug.url}",), sysfs=tmp_path, nvml=tmp_path / "none"), 100_000_000)


def test_two_more_answers_of_a_slow_meter_are_waited_for(tmp_path, monkeypatch):
    now_ns = [0]
    monkeypatch.setattr(process, "boot_ns", lambda: now_ns[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now_ns.append(now_ns.pop() + round(seconds * 1e9)))
    with SqliteStore.create(tmp_path / "e.sqlite") as store:
        session = store.begin_session("n", 0, 100_000_000, {"sensors": [{"period_s": 20.0}]})
        process.wait_until_read(store, session, 1, 0, None)
    assert now_ns[0] / 1e9 == pytest.approx(43.2, abs=0.5)


@pytest.mark.process
def test_an_agent_measures_the_wall_beside_the_parts(serve, plant, tmp_path):
    tree, plug = plant("intel-two-sockets"), serve({SWITCH: Meter()})
    store = tmp_path / "e.sqlite"
    options = [f"--sysfs={tree.root}", f"--nvml={tmp_path / 'none.so'}"]
    with tree.running(), Agent(store, node="n", interval_ms=50, wall=f"shelly:{plug.url}", options=options) as agent:
        time.sleep(1.5)
        start_ns = time.monotonic_ns() + agent.offset_ns
        time.sleep(3)
        end_ns = time.monotonic_ns() + agent.offset_ns
        kept = agent.readings(start_ns, end_ns)
        with SqliteStore.open(store) as opened_store:
            (found,) = query(opened_store, start_ns, end_ns, "n", clock="readings")
    parts = {c.name: c for c in found.components}
    seconds = (end_ns - start_ns) / 1e9
    assert parts["wall"].joules == pytest.approx(1000 * seconds, abs=parts["wall"].error_j + 4)
    assert parts["wall"].sources == ("shelly-energy",)
    assert parts["total"].joules == pytest.approx(parts["cpu"].joules + parts["dram"].joules)
    assert found.missed_share < 0.5, "a meter that is asked once a second misses no ticks"
    assert {r.source for r in kept if r.domain == "wall" and r.t_ns > end_ns} == {"shelly-energy", "shelly-power"}
    assert os.getpid() == agent.owner
