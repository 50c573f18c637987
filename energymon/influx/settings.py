"""Where an InfluxDB server is and how it is asked, from the environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from energymon.errors import OptionError

if TYPE_CHECKING:
    from influxdb_client.client.influxdb_client import InfluxDBClient


@dataclass(frozen=True, slots=True)
class InfluxSettings:
    """A server's address, and the credentials for it."""

    url: str
    bucket: str
    """On InfluxDB 1.8 DATABASE/RETENTION-POLICY; on 3 the database."""
    org: str
    """InfluxDB 1.8 and 3 have none and ignore it."""
    token: str = field(repr=False)
    """On InfluxDB 1.8 USER:PASSWORD."""
    token_file: Path | None
    """Where the token was read from; read again when the server no longer takes it."""
    ca: Path | None
    """Certificates, PEM, of who may have signed the server's; None for those of the system."""
    timeout_ms: int
    """For a request as a whole."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> InfluxSettings:
        """Return what INFLUXDB_V2_{URL,ORG,BUCKET,TOKEN,TOKEN_FILE,SSL_CA_CERT,TIMEOUT} say.

        A token file wins over a token, TIMEOUT is in ms. Raises OptionError, which never shows the token.
        """
        url = _checked_url(environment.get("INFLUXDB_V2_URL", ""))
        if find_spec("influxdb_client") is None:
            raise OptionError(f"INFLUXDB_V2_URL={url}: its client is missing: pip install 'joulefeed[influx]'")
        bucket = environment.get("INFLUXDB_V2_BUCKET", "")
        if not bucket:
            raise OptionError("INFLUXDB_V2_BUCKET is not set: expected the bucket that the readings go to")
        ca = environment.get("INFLUXDB_V2_SSL_CA_CERT")
        if ca and not Path(ca).is_file():
            raise OptionError(f"INFLUXDB_V2_SSL_CA_CERT={ca}: there is no such file; expected certificates, PEM")
        timeout = environment.get("INFLUXDB_V2_TIMEOUT") or "10000"
        if not timeout.isdecimal() or not int(timeout):
            raise OptionError(f"INFLUXDB_V2_TIMEOUT={timeout!r}: expected a whole number of ms")
        file = environment.get("INFLUXDB_V2_TOKEN_FILE")
        return cls(
            url=url,
            bucket=bucket,
            org=environment.get("INFLUXDB_V2_ORG") or "-",
            token="" if file else _checked_token(environment.get("INFLUXDB_V2_TOKEN", ""), "INFLUXDB_V2_TOKEN"),
            token_file=Path(file) if file else None,
            ca=Path(ca) if ca else None,
            timeout_ms=int(timeout),
        ).reread()

    def reread(self) -> InfluxSettings:
        """Return the same with the token that its file holds now; raises OptionError."""
        if self.token_file is None:
            return self
        name = f"INFLUXDB_V2_TOKEN_FILE={self.token_file}"
        try:
            token = self.token_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            raise OptionError(f"{name}: cannot be read: {reason}; expected a file that holds the token") from None
        return replace(self, token=_checked_token(token.strip(), name))

    def warning(self) -> str | None:
        """Return a warning of an unsafe setting, or None."""
        with suppress(OSError):
            if self.token_file is not None and self.token_file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
                return f"{self.token_file}: every user of this host can read the token; chmod 600 it"
        return None

    def client(self) -> InfluxDBClient:
        """Return a client of the server, which the caller closes; nothing is sent yet."""
        from influxdb_client.client.influxdb_client import InfluxDBClient

        ca = str(self.ca) if self.ca else None
        return InfluxDBClient(self.url, token=self.token, org=self.org, timeout=self.timeout_ms, ssl_ca_cert=ca)

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} at {self.url}"


def _checked_url(url: str) -> str:
    if not url:
        raise OptionError("INFLUXDB_V2_URL is not set: expected the server's address, http://HOST:8086")
    try:
        parts = urlsplit(url)
        port_ok = parts.port != 0
    except ValueError:
        raise OptionError("the InfluxDB URL cannot be read: expected http[s]://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        # Not shown: it holds a password.
        raise OptionError(
            "the InfluxDB URL holds a user or a password, which logs would show; "
            "put the token into INFLUXDB_V2_TOKEN or a file named by INFLUXDB_V2_TOKEN_FILE"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or parts.query or parts.fragment:
        raise OptionError(f"InfluxDB URL {url!r}: expected http[s]://HOST:PORT and nothing behind it but a path")
    return url.rstrip("/")


def _checked_token(token: str, name: str) -> str:
    # The HTTP client would show a header that it cannot send.
    if not token:
        raise OptionError(f"{name} holds no token; expected one that may read or write the bucket")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise OptionError(f"{name} holds no token: expected printable ASCII without spaces, and no line breaks")
    return token
