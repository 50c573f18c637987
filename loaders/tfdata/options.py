"""The options of the daemon: flags of `serve`, and keys of the `daemon` section of a loader in an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LISTEN = "127.0.0.1:5050"


class DaemonOptions(BaseModel):
    """What a daemon serves, on which address and how. A field's title is the value that its flag takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path = Field(title="DIR", description="shard folder, as `python -m loaders.streaming convert` makes it")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description="address of the dispatcher, by which clients reach it; the workers listen on the same host at free "
        f"ports; port 0 is any free one (default: {LISTEN})",
    )
    no_auth: bool = Field(
        default=False,
        description="serve anyone who can reach an address that is not loopback: tf.data service authenticates nobody, "
        "and who reaches it has it read any file that this user can read",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        title="N",
        description="tf.data workers, 1 to 64; a client has one request under way at each, so distance needs several "
        "(default: 1)",
    )
    threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, title="N", description="threads of TensorFlow's operations, 1 to 64 (default: 2)"
    )
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")
