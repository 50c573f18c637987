# /// script
# requires-python = ">=3.11"
# dependencies = ["optuna==4.6.0"]
# ///
"""Mean regret of Optuna's TPE in grids that are measured; `advise.py` runs it with uv, in an environment of its own.

Reads a list of cases as JSON from standard input: `grid` (seconds by choice), `loaders` (the loader of each choice),
`cells` (trials) and `scatter` (of a trial). Writes a list of regrets.
"""

import json
import math
import random
import sys
from statistics import fmean

import optuna

STUDIES = 100


def main() -> None:
    """Read the cases and write the regret of each."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    json.dump([fmean(search(case, seed) for seed in range(STUDIES)) for case in json.load(sys.stdin)], sys.stdout)


def search(case: dict, seed: int) -> float:
    """Return the regret of one study: the loader first, then its setting."""
    grid, draw = case["grid"], random.Random(seed)
    settings: dict[str, list[str]] = {}
    for key in sorted(grid):
        settings.setdefault(case["loaders"][key], []).append(key)

    def objective(trial: optuna.Trial) -> float:
        loader = trial.suggest_categorical("loader", sorted(settings))
        key = trial.suggest_categorical(loader, settings[loader])
        return grid[key] * math.exp(draw.gauss(0, case["scatter"]))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=case["cells"])
    chosen = study.best_params
    return grid[chosen[chosen["loader"]]] / min(grid.values()) - 1


if __name__ == "__main__":
    main()
