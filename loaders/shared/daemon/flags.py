"""The command line of a daemon, made of the model of its options, the address that it names, and its exit status."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loaders.errors import LoaderConfigError, LoaderError, StreamError

Options = TypeVar("Options", bound=BaseModel)


class ServeOptions(BaseModel):
    """What a daemon serves and where: flags of `serve`, with titles for their values, and keys of `daemon` sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    root: Path = Field(title="DIR")
    listen: str = Field(
        default="127.0.0.1:0", title="HOST:PORT", description="address to listen on; port 0 is any free one"
    )
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")


class KeyedServeOptions(ServeOptions):
    """And to whom it serves."""

    keys: Path | None = Field(
        default=None,
        title="DIR",
        description="the daemon's half of what `keygen` made; only its client is served, and everything is encrypted "
        "and authenticated",
    )
    no_auth: bool = Field(
        default=False,
        description="serve anyone who can reach an address that is not loopback; nothing is encrypted or authenticated",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.keys is not None and self.no_auth:
            raise ValueError("--keys and --no-auth exclude each other")
        return self


def flag_of(name: str) -> str:
    """Return the flag of an option: --rtt-ms of rtt_ms."""
    return f"--{name.replace('_', '-')}"


def add_flags(parser: argparse.ArgumentParser, options: type[BaseModel]) -> None:
    """Give a command a flag for each option; `read_flags` checks their values."""
    for name, field in options.model_fields.items():
        about = (field.description or "").replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(flag_of(name), action="store_true", default=argparse.SUPPRESS, help=about)
            continue
        parser.add_argument(
            flag_of(name),
            action="append" if field.annotation == tuple[Path, ...] else "store",
            default=argparse.SUPPRESS,
            required=field.is_required(),
            metavar=field.title,
            help=about,
        )


def read_flags(options: type[Options], given: Mapping[str, object]) -> Options:
    """Return the options of a command line; raises LoaderConfigError, which names the flag, for a wrong one."""
    try:
        return options.model_validate({name: given[name] for name in options.model_fields if name in given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            raise LoaderConfigError(str(first["ctx"]["error"])) from error
        expected = first["msg"].replace("Input should be", "expected")
        raise LoaderConfigError(f"{flag_of(str(first['loc'][0]))} {first['input']}: {expected}") from error


def flags(options: BaseModel) -> Sequence[str]:
    """Return the command line of the options that differ from their defaults."""
    argv: list[str] = []
    for name, value in options.model_dump(exclude_defaults=True).items():
        if value is True:
            argv.append(flag_of(name))
        else:
            for one in value if isinstance(value, tuple) else (value,):
                argv += [flag_of(name), str(one)]
    return argv


def run_command(run: Callable[[], int | None]) -> int:
    """Run a command and return its exit status: 0 or its own when done, 2 after an error, 1 where nobody reads it."""
    try:
        return run() or 0
    except LoaderError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except BrokenPipeError:  # the process that reads its output has ended: drop the rest of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def resolve_address(listen: str) -> tuple[str, int]:
    """Return the numeric host and the port of HOST:PORT, where an IPv6 host stands in brackets.

    Raises StreamError for text that is no address, and for a host that is not known.
    """
    host, _, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or set(host) & set("[]/") or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise StreamError(f"--listen {listen}: expected HOST:PORT, such as 127.0.0.1:0; *:PORT is every IPv4 address")
    try:
        # An empty host is every address (getaddrinfo(3)); of "*" the resolver would make ::1.
        known = (None, socket.AF_INET) if host == "*" else (host, socket.AF_UNSPEC)
        found = socket.getaddrinfo(known[0], int(port), known[1], socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StreamError(f"--listen {listen}: no such host: {error.strerror}") from error
    return str(found[0][4][0]), int(port)


def resolve_one_address(listen: str) -> tuple[str, int]:
    """Return what `resolve_address` does, for a daemon that announces the address to its clients.

    Raises LoaderConfigError for every address of the host, and what `resolve_address` raises.
    """
    host, port = resolve_address(listen)
    if ip_address(host).is_unspecified:
        raise LoaderConfigError(f"--listen {listen}: expected one address of this host, which clients can reach")
    return host, port
