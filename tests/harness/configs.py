"""Configs of shipped experiments, and what becomes of them."""

from harness.config.command_line import compose_config
from harness.config.experiment import experiment_from


def composed(*overrides):
    return compose_config("config", overrides)


def experiment(*overrides):
    return experiment_from(composed(*overrides))
