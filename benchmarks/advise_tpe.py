# /// script
# requires-python = ">=3.11"
# dependencies = ["optuna==4.6.0"]
# ///
"""Mean regret of Optuna's TPE in grids that are measured; `advise.py` runs it with uv, in an environment of its own.

Reads a list of cases as JSON from standard input: `seen` (seconds of the epoch that a trial shows, by choice), `judged`
(seconds by which the end is judged), `loaders` (the loader of each choice), `budget_s` (seconds of all trials) and
`scatter` (of a trial). Writes a list of regrets.
"""

import json
import math
import random
import sys
from statistics import fmean

import optuna

STUDIES = 100
MOST_TRIALS = 500


def main() -> None:
    """Read the cases and write the regret of each."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    json.dump([fmean(search(case, seed) for seed in range(STUDIES)) for case in json.load(sys.stdin)], sys.stdout)


def search(case: dict, seed: int) -> float:
    """Return the regret of one study: the loader first, then its setting."""
    seen, judged, draw, spent_s = case["seen"], case["judged"], random.Random(seed), 0.0
    settings: dict[str, list[str]] = {}
    for key in sorted(seen):
        settings.setdefault(case["loaders"][key], []).append(key)

    def objective(trial: optuna.Trial) -> float:
        loader = trial.suggest_categorical("loader", sorted(settings))
        key = trial.suggest_categorical(loader, settings[loader])
        nonlocal spent_s
        spent_s += seen[key]
        return seen[key] * math.exp(draw.gauss(0, case["scatter"]))

    def stop(study: optuna.Study, _: optuna.trial.FrozenTrial) -> None:
        if spent_s >= case["budget_s"]:
            study.stop()

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=MOST_TRIALS, callbacks=[stop])
    chosen = study.best_params
    return judged[chosen[chosen["loader"]]] / min(judged.values()) - 1


if __name__ == "__main__":
    main()
