"""What a bare host has, found by its own Python 3 without any package; sent there over SSH, and it changes nothing.

Each line of standard input is a request as JSON, each line of standard output its answer. It ends at the end of its
input, or ten minutes after the last request. Where it has claimed the host for a controller it ends one minute after
the last request, and removes what Ansible's modules left in /tmp since. It keeps to the standard library of Python 3.8:
`harness.testbed.hosts.session` sends it as text.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate it
    Facts = dict[str, Any]
    """Values of JSON, by name."""

TIMEOUT_S = 5.0
SUDO_S = 60.0
"""It may ask servers of names, and a busy host takes a while."""
LIFE_S = 600
CLAIM_S = 60
CLAIM = "\0joulefeed-testbed"
"""Name of the socket that one process of a host can have: it needs no file and no rights, and ends with the process."""
ORPHAN_S = 5
"""How long a claim lasts when its controller is gone: Ansible is ended meanwhile."""
PINGS = 60
FLOW_S = 0.4
CHUNK = bytes(1 << 18)
RUNS = "import sys, harness.testbed.hosts.supervisor; print('Python', sys.version.split()[0])"
"""What an interpreter must be able to do so that runs can start on its host."""


def run(*argv: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Return a command's status and output; 127 where it is not installed, 124 where it takes too long."""
    try:
        done = subprocess.run(
            argv,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no end within {timeout_s:g} s"
    except OSError as error:
        return 127, str(error.strerror)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def read(path: str) -> str:
    """Return a small file's text, or nothing."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def system() -> Facts:
    """Return what the host is."""
    lines = [line.partition("=") for line in read("/etc/os-release").splitlines()]
    names = {key: value.strip('"') for key, _, value in lines}
    return {
        "os": names.get("PRETTY_NAME", platform.system()),
        "apt": shutil.which("apt-get") is not None,
        "kernel": platform.release(),
        "python": list(sys.version_info[:3]),
        "tc": run("tc", "-V")[0] == 0,
    }


def basics(asked: Facts) -> Facts:
    """Return what must be right before anything is changed here: rights, room, interfaces and the data address."""
    address = asked.get("address")
    login = os.environ.get("SSH_CONNECTION", "").split()
    sudo = () if os.geteuid() == 0 else ("sudo", "-n")
    status, words = run(*sudo, "true", timeout_s=SUDO_S) if sudo else (0, "root")
    return {
        "root": status == 0,
        "sudo": words,
        "python_of_runs": None
        if status or not asked["python"]
        else run(*sudo, asked["python"], "-c", RUNS, timeout_s=SUDO_S),
        "room": {folder: room(folder) for folder in asked["folders"]},
        "interfaces": interfaces(),
        "address_is_local": None if address is None else is_local(address),
        "login_address": login[2] if len(login) == 4 else "",
    }


def module(name: str) -> str:
    """Return how the kernel has a module: loaded, built in, as a file that can be loaded, or not at all."""
    if pathlib.Path(f"/sys/module/{name}").is_dir():
        return "loaded"
    folder = f"/lib/modules/{platform.release()}"
    for file, how in (("modules.builtin", "built in"), ("modules.dep", "can be loaded")):
        if f"/{name}.ko" in read(f"{folder}/{file}"):
            return how
    return ""


def room(folder: str) -> Facts:
    """Return what a folder, or the nearest one above it that exists, can take; files: None where no limit is known."""
    there = pathlib.Path(folder)
    while not there.is_dir():
        there = there.parent
    found = os.statvfs(str(there))
    return {
        "bytes": found.f_bavail * found.f_frsize,
        "files": found.f_favail if found.f_files else None,
        "writable": not found.f_flag & os.ST_RDONLY,
    }


def port_use(port: int) -> str:
    """Return whether a TCP port is free, taken, or taken by InfluxDB."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
            return "free"
        except OSError:
            pass
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/ping")
        if connection.getresponse().getheader("X-Influxdb-Version"):
            return "InfluxDB"
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return "taken"


def interfaces() -> dict[str, Facts]:
    """Return the addresses, state and MTU of each network interface."""
    status, words = run("ip", "-j", "address")
    if status:
        return {name: {"addresses": None, "state": "", "mtu": 0} for _, name in socket.if_nameindex()}
    return {
        one["ifname"]: {
            "addresses": [address["local"] for address in one.get("addr_info", ()) if "local" in address],
            "state": one.get("operstate", ""),
            "mtu": one.get("mtu", 0),
        }
        for one in json.loads(words)
    }


def is_local(address: str) -> bool:
    """Return whether an address is one of this host's."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def chrony() -> str:
    """Return what `chronyc -c tracking` prints, or nothing."""
    status, words = run("chronyc", "-c", "tracking")
    return "" if status else words


def rapl() -> Facts:
    """Return the packages that RAPL counts, and how they can be read."""
    zones = pathlib.Path("/sys/class/powercap").glob("intel-rapl:*/name")
    names = [name for name in map(read, map(str, zones)) if name.startswith("package")]
    perf = pathlib.Path("/sys/bus/event_source/devices/power/events/energy-pkg").exists()
    return {"packages": len(names), "perf": perf}


def nvml() -> Facts:
    """Return the GPUs that the NVIDIA driver sees; an error where there is no driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"error": str(error)}
    status = library.nvmlInit_v2()
    if status:
        return {"error": f"NVML does not start (error {status})"}
    try:
        count, version = ctypes.c_uint(), ctypes.create_string_buffer(80)
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        library.nvmlSystemGetDriverVersion(version, 80)
        return {"gpus": count.value, "driver": version.value.decode()}
    finally:
        library.nvmlShutdown()


def facts(asked: Facts) -> Facts:
    """Return all that can be found without another host."""
    return {
        **system(),
        **basics(asked),
        "modules": {name: module(name) for name in asked["modules"]},
        "ports": {str(port): port_use(port) for port in asked["ports"]},
        "chrony": chrony(),
        "rapl": rapl(),
        "nvml": nvml(),
        "socket": bool(asked.get("socket")) and pathlib.Path(asked["socket"]).exists(),
    }


def answer(connection: socket.socket) -> None:
    """Serve one connection: echo bytes, send for a while, or count what comes."""
    with connection:
        connection.settimeout(TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            kind = connection.recv(1)
            if kind == b"p":
                while connection.recv(1):
                    connection.sendall(b"p")
            elif kind == b"d":
                send_for(connection)
            elif kind == b"u":
                connection.sendall(json.dumps(receive(connection)).encode())
        except OSError:
            pass


def send_for(connection: socket.socket) -> None:
    """Send zeros for a while, then end the stream."""
    until = time.monotonic() + FLOW_S
    while time.monotonic() < until:
        connection.sendall(CHUNK)
    connection.shutdown(socket.SHUT_WR)


def receive(connection: socket.socket) -> float:
    """Read to the end of a stream; return its rate in Gbit/s."""
    begin, count = time.monotonic(), 0
    while True:
        got = connection.recv(len(CHUNK))
        if not got:
            return count * 8e-9 / max(time.monotonic() - begin, 1e-6)
        count += len(got)


def serve(asked: Facts) -> Facts:
    """Listen on an address, at a port of the kernel's choice, until this process ends."""
    address = asked["address"]
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(8)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return {"port": listener.getsockname()[1]}


def connect(asked: Facts, kind: bytes) -> socket.socket:
    """Connect to a server from this host's data address."""
    connection = socket.create_connection((asked["host"], asked["port"]), TIMEOUT_S, (asked["address"], 0))
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(kind)
    return connection


def measure(asked: Facts) -> Facts:
    """Return the round trip to a server and the rate of one TCP flow each way; raises OSError where it is lost."""
    times: list[float] = []
    with connect(asked, b"p") as connection:
        until = time.monotonic() + TIMEOUT_S
        while len(times) < PINGS and time.monotonic() < until:
            begin = time.perf_counter()
            connection.sendall(b"p")
            if not connection.recv(1):
                raise OSError("the other host closed the connection")
            times.append(time.perf_counter() - begin)
    with connect(asked, b"d") as connection:
        down_gbit = receive(connection)
    with connect(asked, b"u") as connection:
        send_for(connection)
        up_gbit = json.loads(connection.recv(100) or b"0")
    return {"rtt_ms": 1e3 * statistics.median(times), "from_gbit": down_gbit, "to_gbit": up_gbit}


def claim(asked: Facts) -> Facts:
    """Take this host until this process ends, and show others `who` has it; where another has it, return who."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(CLAIM)
    except OSError:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(TIMEOUT_S)
            try:
                asking.connect(CLAIM)
                return {"taken": asking.recv(1000).decode(errors="replace")}
            except OSError:
                return {"taken": "another process, which does not answer"}
    holder.listen(8)

    def answer_who() -> None:
        while True:
            connection, _ = holder.accept()
            with contextlib.suppress(OSError):
                connection.sendall(asked["who"].encode())
            connection.close()

    threading.Thread(target=answer_who, daemon=True).start()
    return {"taken": ""}


def ansible_folders() -> set[pathlib.Path]:
    """Return the folders of this user's that Ansible copies modules to; it removes them itself unless it is killed."""
    found = set()
    for folder in pathlib.Path("/tmp").glob("ansible-tmp-*"):  # noqa: S108 - remote_tmp of ansible.cfg
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                found.add(folder)
    return found


def main() -> None:
    """Answer requests until there are no more."""
    tasks = {"facts": facts, "basics": basics, "claim": claim, "serve": serve, "measure": measure}
    life_s, is_claimed, is_left, before = LIFE_S, False, False, ansible_folders()
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    signal.alarm(life_s)
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "leave":
                is_left = True
                break
            found: Facts = {"utc_ns": time.time_ns()}
            if asked["do"] != "clock":
                try:
                    found = tasks[asked["do"]](asked)
                except OSError as error:
                    found = {"error": str(error.strerror or error)}
            if found.get("taken") == "":
                life_s, is_claimed = CLAIM_S, True
            signal.alarm(life_s)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    finally:
        signal.alarm(0)
        if is_claimed:
            time.sleep(0 if is_left else ORPHAN_S)
            for folder in ansible_folders() - before:
                shutil.rmtree(str(folder), ignore_errors=True)


if __name__ == "__main__":
    main()
