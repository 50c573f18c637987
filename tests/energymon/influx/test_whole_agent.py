"""An agent with its sender against the real server: away, restarted, and the agent killed."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from energymon import SqliteStore, channels_of, energy_of
from energymon.analysis.restarts import bridged
from tests.energymon.conftest import FOREVER, event_kinds, stored, wait_for
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import ORG
from tests.energymon.influx.test_tuples import paper_sum, stored_points

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[3]


def flags(server, bucket):
    return ["--influxdb-url", server.url, "--influxdb-org", ORG, "--influxdb-bucket", bucket]


@pytest.fixture
def token(server, monkeypatch):
    for name in [name for name in os.environ if name.startswith("INFLUXDB_V2_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFLUXDB_V2_TOKEN", server.token)
    return server.token


def here(path):
    return stored(path)[0]


def there(server, bucket):
    with Bucket(server.settings(bucket)) as store:
        return store.readings(0, FOREVER)


def test_what_an_agent_samples_is_on_the_server_when_it_has_ended_and_the_token_is_nowhere(
    server, bucket, token, rapl, start_agent, tmp_path
):
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20", *flags(server, bucket))
        time.sleep(0.5)
        arguments = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        said = agent.end()
    readings = here(agent.store)
    assert there(server, bucket) == readings
    with SqliteStore.open(agent.store) as local, Bucket(server.settings(bucket)) as remote:
        assert remote.sessions() == local.sessions()
    assert "energymon send" in arguments
    assert token not in arguments + said
    for path in tmp_path.rglob("energy*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_a_server_that_is_down_at_the_start_and_goes_down_again_gets_everything_in_the_end(
    server, bucket, token, rapl, start_agent
):
    server.stop()
    with rapl.running():
        agent = start_agent("--sysfs", str(rapl.root), "--interval-ms", "20", *flags(server, bucket))
        wait_for(lambda: "sender-waiting" in event_kinds(agent.store))
        server.start()
        wait_for(lambda: stored_points(server, bucket))  # a query during a write may find points without all fields
        server.kill()
        time.sleep(3)
        server.start()
        before = len({reading.tick_ns for reading in here(agent.store)})
        wait_for(lambda: len(stored_points(server, bucket)) > before)
        agent.end()
    assert there(server, bucket) == here(agent.store)


@pytest.mark.slow
def test_agents_killed_at_random_moments_lose_and_double_nothing_on_the_server(server, bucket, token, rapl, tmp_path):
    store = tmp_path / "energy.sqlite"
    moments = random.Random(7)
    argv = [sys.executable, "-m", "energymon", "run", "--store", store, "--node", "n", "--interval-ms", "10"]
    argv += ["--sysfs", rapl.root, "--until-eof", *flags(server, bucket)]
    with rapl.running():
        for life in range(8):
            agent = subprocess.Popen(
                argv, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert agent.stdout.readline()
            until = time.monotonic() + moments.uniform(0.0, 1.5)
            while time.monotonic() < until:
                agent.stdin.write(b"\n")
                agent.stdin.flush()
                time.sleep(0.02)
            if life == 7:
                agent.terminate()
                agent.wait(40)
            else:
                agent.kill()
            agent.communicate()
    # The sender of an agent that was killed may still have been at work when the last one ended.
    by_hand = [sys.executable, "-m", "energymon", "send", "--store", store]
    env = {**os.environ, **server.environment(bucket)}
    wait_for(lambda: subprocess.run(by_hand, cwd=REPO, env=env, stdout=subprocess.DEVNULL, check=False).returncode == 0)
    kept = here(store)
    assert len(kept) > 400
    assert there(server, bucket) == kept
    # The joules between two agents are in the tuples too.
    with SqliteStore.open(store) as local:
        sessions = local.sessions()
        readings = bridged(kept, local.counters(), sessions)
    first_ns, last_ns = (edge(r.tick_ns for r in kept) for edge in (min, max))
    start_ns, end_ns = first_ns + 20_000_000, last_ns - 20_000_000
    channels = channels_of(sessions[-1].description, "n")
    joules = energy_of(readings, channels, start_ns, end_ns, 10_000_000).joules("cpu")
    assert joules is not None
    summed = paper_sum(server, bucket, "n", "cpu_energy", start_ns + 1, end_ns + 1)
    # An agent that is killed does not see how far its last value was from the counter's next one.
    tick_j = max(row["cpu_energy"] for row in stored_points(server, bucket).values())
    assert abs(summed - joules) <= len(sessions) * tick_j
    assert joules > 10 * len(sessions) * tick_j
