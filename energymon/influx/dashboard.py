"""The dashboard of an InfluxDB 2 server: power of every node, and the epochs of a run, from `dashboard.json`."""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from energymon.errors import StoreError
from energymon.influx.client import explain
from energymon.influx.settings import InfluxSettings

_STACK: Final = "joulefeed"
_MANY: Final = 100
_NEW: Final = f"{0:016x}"
"""The id of what an apply would make."""


def template(bucket: str) -> list[dict[str, Any]]:
    """Return the dashboard as an InfluxDB template, which `influx apply` takes too."""
    text = (files("energymon.influx") / "dashboard.json").read_text()
    # Inside a Flux text inside a JSON text.
    quoted = json.dumps(json.dumps(bucket))[3:-3]
    return list(json.loads(text.replace("BUCKET", quoted)))


def apply_dashboard(settings: InfluxSettings) -> dict[str, object]:
    """Make or renew the dashboard of the organisation's stack `joulefeed`; return `changed` and the `dashboard`'s URL.

    A dashboard that is already as it should be is left alone. Raises StoreError when the server refuses.
    """
    import urllib3
    from influxdb_client.rest import ApiException

    contents = template(settings.bucket)
    version = sha256(json.dumps(contents).encode()).hexdigest()
    client: Any = settings.client()

    def call(method: str, path: str, body: object = None, **query: str) -> dict[str, Any]:
        answer = client.api_client.call_api(
            f"/api/v2/{path}",
            method,
            query_params=list(query.items()),
            header_params={"Content-Type": "application/json", "Accept": "application/json"},
            body=body,
            response_type="object",
            _return_http_data_only=True,
        )
        return dict(answer or {})

    try:
        organisations = call("GET", "orgs", org=settings.org)["orgs"]
        org = str(organisations[0]["id"])
        stacks = call("GET", "stacks", orgID=org, name=_STACK, limit=str(_MANY)).get("stacks") or []
        stack = stacks[0] if stacks else call("POST", "stacks", {"orgID": org, "name": _STACK})
        request = {"orgID": org, "stackID": stack["id"], "template": {"contents": contents}}
        planned = call("POST", "templates/apply", {**request, "dryRun": True})
        # What a user has removed, the plan has all the same.
        board = _board(planned)
        there = board != _NEW and call("GET", "dashboards", orgID=org, id=board)["dashboards"]
        changed = not there or stack.get("description") != version
        done = call("POST", "templates/apply", {**request, "dryRun": False}) if changed else planned
        if changed:
            call("PATCH", f"stacks/{stack['id']}", {"name": _STACK, "description": version})
    except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
        raise StoreError(f"the dashboard cannot be made: {explain(settings, error)}") from None
    except (KeyError, IndexError, TypeError) as error:
        raise StoreError(
            f"the dashboard cannot be made: {settings.url} answered without {error}; expected InfluxDB 2.x"
        ) from None
    finally:
        client.close()
    return {"changed": changed, "dashboard": f"{settings.url}/orgs/{org}/dashboards/{_board(done)}"}


def _board(applied: dict[str, Any]) -> str:
    """Return the dashboard's id; a template's summary alone has it as a number."""
    return f"{int(applied['summary']['dashboards'][0]['id']):016x}"
