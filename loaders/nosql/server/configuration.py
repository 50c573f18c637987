"""The cassandra.yaml of a server with one node, and the options of its Java."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from loaders.nosql.keys import DAEMON_KEY, TRUSTED

DiskAccess = Literal["mmap", "mmap_index_only", "standard"]
SERVER_FILES: Final = (
    *("cassandra.yaml", "logback.xml", "log", "java-error.log"),
    *("commitlog", "hints", "saved_caches", "cdc", "metadata"),
)
"""What a server has in its home beside its tables; the first one is written before it starts."""
_STORAGE_HOST: Final = "127.0.0.1"
_SEGMENT_MIB: Final = 64
MAX_RECORD_BYTES: Final = _SEGMENT_MIB * 2**20 // 2 - 2**16
"""Most bytes of a record: Cassandra takes a write of half a segment of its commit log, whose rest is the row's own."""
_LOGBACK: Final = """<configuration>
  <appender name="stderr" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="stderr"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """What a server listens on, stores and uses."""

    home: Path
    """The folder below which it stores everything."""
    temporary: Path
    """The folder for the native libraries that Java unpacks; their pages are locked in memory as those of its heap."""
    host: str
    port: int
    storage_port: int
    """Of the protocol between nodes, on loopback; a node of a cluster cannot do without."""
    keys: Path | None
    """The daemon's half of what `make_keys` made; None for a server that encrypts and authenticates nothing."""
    heap_mb: int
    disk_access: DiskAccess

    def write(self) -> None:
        """Write the files that the server reads when it starts."""
        (self.home / "cassandra.yaml").write_text(yaml.safe_dump(self._yaml()))
        (self.home / "logback.xml").write_text(_LOGBACK)

    def java_options(self) -> list[str]:
        """Return the options of Java and of Cassandra that go onto the command line."""
        given: dict[str, object] = {
            "cassandra.config": (self.home / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": self.home,
            "logback.configurationFile": self.home / "logback.xml",
            "java.io.tmpdir": self.temporary,
            # There is no other node to wait for.
            "cassandra.ring_delay_ms": 100,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.superuser_setup_delay_ms": 0,
            "cassandra.skip_paxos_state_rebuild": "true",
            # Otherwise it closes standard error once it has started, before it binds the port of its clients.
            "cassandra-foreground": "yes",
            "io.netty.tryReflectionSetAccessible": "true",
        }
        return [
            f"-Xmx{self.heap_mb}m",
            f"-Xms{min(self.heap_mb, 256)}m",
            *("-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"),
            f"-XX:ErrorFile={self.home / 'java-error.log'}",
            *(f"-D{name}={value}" for name, value in given.items()),
        ]

    def _yaml(self) -> dict[str, Any]:
        folders = {
            "commitlog_directory": "commitlog",
            "hints_directory": "hints",
            "saved_caches_directory": "saved_caches",
            "cdc_raw_directory": "cdc",
        }
        seeds = {"seeds": f"{_STORAGE_HOST}:{self.storage_port}"}
        found: dict[str, Any] = {
            "cluster_name": "joulefeed",
            "num_tokens": 1,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "data_file_directories": [str(self.home / "data")],
            **{key: str(self.home / name) for key, name in folders.items()},
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "10s",
            "commitlog_segment_size": f"{_SEGMENT_MIB}MiB",
            "native_transport_max_frame_size": f"{_SEGMENT_MIB}MiB",
            "disk_access_mode": self.disk_access,
            "endpoint_snitch": "SimpleSnitch",
            "listen_address": _STORAGE_HOST,
            "storage_port": self.storage_port,
            "seed_provider": [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [seeds]}],
            "start_native_transport": True,
            "rpc_address": self.host,
            "native_transport_port": self.port,
        }
        if self.keys is not None:
            encryption = {
                # The password of the first role is known to all until it is changed: nobody else gets that far.
                "require_client_auth": True,
                "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
                "keystore": str(self.keys / DAEMON_KEY),
                "truststore": str(self.keys / TRUSTED),
            }
            found |= {
                "authenticator": "PasswordAuthenticator",
                "authorizer": "CassandraAuthorizer",
                # The password is changed before the server is ready, and must hold at once.
                "credentials_validity": "0ms",
                "client_encryption_options": {"enabled": True, "optional": False, **encryption},
                "server_encryption_options": {"internode_encryption": "all", "optional": False, **encryption},
            }
        return found
