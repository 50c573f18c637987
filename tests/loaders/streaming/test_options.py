"""The options of the daemon are one model, from which its flags are made."""

import argparse

import pytest

from loaders.errors import LoaderConfigError
from loaders.shared.daemon_flags import add_flags, flags, read_flags
from loaders.streaming.options import DaemonOptions


def read(*argv: str) -> DaemonOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser, DaemonOptions)
    return read_flags(DaemonOptions, vars(parser.parse_args(argv)))


def test_what_is_given_as_flags_comes_back_as_the_same_options():
    options = DaemonOptions(root="shards", listen="[::1]:0", no_auth=True, threads=3, rtt_ms=30, until_eof=True)
    assert read(*flags(options)) == options


def test_an_option_at_its_default_needs_no_flag():
    assert flags(DaemonOptions(root="shards", threads=1)) == ["--root", "shards"]


def test_every_option_has_a_flag_and_says_what_it_is_for():
    parser = argparse.ArgumentParser()
    add_flags(parser, DaemonOptions)
    text = parser.format_help()
    for name, field in DaemonOptions.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--threads", "65"], "--threads 65"),
        (["--rtt-ms", "far"], "--rtt-ms far"),
        (["--keys", "k", "--no-auth"], "--keys and --no-auth"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(argv, named):
    with pytest.raises(LoaderConfigError, match=named):
        read("--root", "shards", *argv)
