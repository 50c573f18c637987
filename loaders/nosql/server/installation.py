"""The jars of Cassandra and the Java that runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from loaders.errors import LoaderError
from loaders.shared.daemon.programs import ask_playbook

_JAVAS: Final = ("java-17*", "java-11*")
_JAVA_S: Final = 60.0
_MAIN: Final = "org.apache.cassandra.service.CassandraDaemon"
# What conf/jvm17-server.options of Cassandra 5.0 opens to it.
_EXPORTS: Final = (
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.sql/java.sql"),
    *("java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server"),
    "java.rmi/sun.rmi.transport.tcp",
)
_OPENS: Final = (
    *("java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.reflect"),
    *("java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent", "java.base/sun.nio.ch"),
    *("java.base/java.util.concurrent.atomic", "java.base/jdk.internal.loader", "java.base/jdk.internal.math"),
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.module", "java.base/jdk.internal.ref"),
    *("java.base/jdk.internal.reflect", "java.base/jdk.internal.util.jar"),
    "jdk.management/com.sun.management.internal",
)


class DatabaseServerError(LoaderError):
    """A database server cannot be found, installed or started."""


def server_command(options: list[str]) -> list[str]:
    """Return the command line of a server with these options of Java and of Cassandra.

    The first time playbooks/cassandra.sh installs Cassandra, which takes some 10 s. Raises DatabaseServerError where
    there is none.
    """
    folder = ask_playbook("cassandra")
    if folder is None:
        raise DatabaseServerError("playbooks/cassandra.sh found no Cassandra server; see its messages above")
    jars = sorted([*folder.glob("*.jar"), *folder.glob("lib/*.jar")])
    return [
        str(_find_java()),
        *options,
        *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
        *("-cp", os.pathsep.join(map(str, jars))),
        _MAIN,
    ]


def _find_java() -> Path:
    """Return the Java that playbooks/cassandra.sh has found or installed."""
    candidates = [Path(home, "bin", "java")] if (home := os.environ.get("JAVA_HOME")) else []
    candidates += [Path(on_path)] if (on_path := shutil.which("java")) else []
    candidates += [path for name in _JAVAS for path in sorted(Path("/usr/lib/jvm").glob(f"{name}/bin/java"))]
    for java in candidates:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if re.search(r' version "1[17]\b', asked.stderr):
            return java
    raise DatabaseServerError("Java 11 or 17 is needed to run Cassandra: install openjdk-17-jre-headless")
