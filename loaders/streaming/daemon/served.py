"""What a daemon counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Served"]


@dataclass(slots=True)
class Served:
    """What a daemon counted since it was started."""

    requests: int = 0
    batches: int = 0
    bytes: int = 0
    """Bytes of records handed to the connections."""
    from_disk: int = 0
    """Batches of which something was not in the page cache."""
    refused: int = 0
    """Well-formed requests for what does not exist."""
    malformed: int = 0
    """Messages that are no request; they get no answer."""
    dropped: int = 0
    """Requests of clients that are gone, or that ask on and on without reading; they get no answer."""
    full: int = 0
    """Times that there were as many connections as may be, and no further one was taken."""
    idle: int = 0
    """Connections that were closed because they were silent while others found no room."""
    paused: int = 0
    """Times that a connection was paused because it had sent more than was read."""
    shed: int = 0
    """Connections that were closed because memory was full."""
