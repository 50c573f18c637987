"""One server that takes lines, and what its refusals mean."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from energymon.errors import EnergyError
from energymon.influx.settings import InfluxSettings
from joulefeed.closing import Closing

if TYPE_CHECKING:
    from influxdb_client.rest import ApiException


_MAX_RETRY_AFTER_S: Final = 3600.0
_MAX_SHOWN: Final = 300
_MAX_PAGE_SHOWN: Final = 80


class ServerUnavailable(EnergyError):
    """The server gives no answer, or asks for a pause; it may be back soon."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WriteRejected(EnergyError):
    """The server answers and takes nothing until somebody changes a setting."""


class RequestTooLarge(EnergyError):
    """The request has more bytes than the server, or a proxy before it, takes."""


class PartialWriteError(EnergyError):
    """The server does not take some of the lines."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.others_taken = "partial write" in reason
        """Whether the server has stored the other lines."""
        dropped = re.search(r"dropped[= ](\d+)", reason)
        self.dropped = int(dropped[1]) if dropped and self.others_taken else None


class InfluxClient(Closing):
    """Posts lines through influxdb-client, one request a call."""

    def __init__(self, settings: InfluxSettings) -> None:
        """Make the client, which takes its time to be imported; nothing is sent yet."""
        self.settings = settings
        self._client = settings.client()

    def post(self, lines: Sequence[str]) -> None:
        """Return when the server has stored the lines, as 204 says.

        Raises ServerUnavailable, WriteRejected, RequestTooLarge or PartialWriteError.
        """
        import urllib3
        from influxdb_client.rest import ApiException

        client: Any = self._client.api_client
        try:
            # Not preloaded: influxdb-client fails at a body that is not UTF-8; a proxy's page may be in any charset.
            answer, status, headers = client.call_api(
                "/api/v2/write",
                "POST",
                query_params=[("org", self.settings.org), ("bucket", self.settings.bucket), ("precision", "ns")],
                header_params={"Content-Type": "text/plain; charset=utf-8", "Accept": "application/json"},
                body="\n".join(lines).encode(),
                _preload_content=False,
            )
            body = answer.data
        except ApiException as error:
            raise _meaning(self.settings, error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ServerUnavailable(explain(self.settings, error)) from None
        # Every InfluxDB says 204 once it has stored every line; a login page is a 200.
        if status != 204:
            text = " ".join(body.decode(errors="replace").split())
            shown = f"{text[:_MAX_PAGE_SHOWN]}…" if len(text) > _MAX_PAGE_SHOWN else text
            what = f"{headers.get('Content-Type', 'no content type')}: {shown!r}" if shown else "nothing more"
            raise WriteRejected(
                f"{self.settings.url} answered a write with {status} ({what}), which is no answer of InfluxDB 1.8, 2.x "
                "or 3: correct the URL, or look for a proxy or a login page before the server"
            )

    def renew(self) -> None:
        """Connect again with the token that its file has now; raises OptionError."""
        self.settings = self.settings.reread()
        self.close()
        self._client = self.settings.client()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._client.close()  # type: ignore[no-untyped-call]


def explain(settings: InfluxSettings, error: Exception) -> str:
    """Say what went wrong with a request and what to do, from what influxdb-client or urllib3 raised."""
    from influxdb_client.rest import ApiException
    from urllib3.exceptions import TimeoutError as NoAnswerError

    if isinstance(error, ApiException):
        # Status 0 is no answer: the connection was refused on this side.
        reason = _words(error) if error.status else str(error.reason)
        reason = ", ".join(reason.split("\n"))[:_MAX_SHOWN].strip(", ")
        meanings: dict[int | None, str] = {
            0: f"no TLS with {settings.url}: {reason}; expected a certificate that "
            f"{settings.ca or 'an authority known to this system'} has signed: name its signer's in "
            "INFLUXDB_V2_SSL_CA_CERT",
            401: f"{settings.url} does not know the token (401: {reason}); correct INFLUXDB_V2_TOKEN or its file",
            403: f"the token has no right to {settings} (403: {reason}); grant it, or name another token",
            404: f"there is no {settings} for organisation {settings.org!r} (404: {reason}); make it, or correct "
            "INFLUXDB_V2_BUCKET and INFLUXDB_V2_ORG",
        }
        return meanings.get(error.status, f"{settings.url} answered {error.status}: {reason}")
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
        return f"{settings.url} cannot be reached: {cause.strerror}"
    if isinstance(error, NoAnswerError) or isinstance(cause, TimeoutError):
        return f"{settings.url} gave no answer within {settings.timeout_ms / 1e3:g} s"
    return f"{settings.url} cannot be reached: {type(error).__name__}"


def _words(error: ApiException) -> str:
    """Return the server's reason; 1.8 has it under another name than influxdb-client looks for."""
    answer: object = error.message or error.reason or ""
    text = (answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)).strip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"])
    return text


def _meaning(settings: InfluxSettings, error: ApiException) -> EnergyError:
    message, status = explain(settings, error), error.status or 0
    if status in (400, 422):
        return PartialWriteError(_words(error))
    if status == 413:
        return RequestTooLarge(message)
    if status in (408, 429) or status >= 500:
        # The date that the header may hold instead is as good as none: clocks differ, and the back-off does as well.
        after = str(error.retry_after or "")
        return ServerUnavailable(message, min(float(after), _MAX_RETRY_AFTER_S) if after.isdecimal() else 0.0)
    return WriteRejected(message)
