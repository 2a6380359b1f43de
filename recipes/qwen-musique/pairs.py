"""One more matched pair of the real model, and `flatline investigate`'s verdict over all of them.

    python pairs.py KEPT.json --config musique.toml --runs RUNS [--looks 3,4] [--jobs 2]

KEPT.json is what `tables.py pack` kept of earlier visits. Its pairs become finished runs, from
their kept plays and findings; the plan asks for one more pair, is written to disk, and is carried
out by what carries out `flatline investigate`: the runs that are missing, the looks, the ruling.
What the earlier verdict was shared among (its family) stays shared. The arms that cannot learn are
left out, as they were: each would cost as much as an arm. Prints JSON: plan, runs and verdict.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flatline.config import RunConfig, load_config
from flatline.errors import FlatlineError
from flatline.experiment import Local, Plan, Role, conduct
from flatline.experiment.outcome import OUTCOME_FILE, Measure, Outcome, Sight, digest_of
from flatline.experiment.plan import HELDOUT
from flatline.experiment.runs import folder_of
from flatline.files import json_in, write_atomically
from flatline.heldout import HeldOutScore
from flatline.hypotheses import find
from flatline.investigation import Setup
from flatline.investigation.plans import plan_for
from flatline.tasks.base import COMBINED

Json = dict[str, Any]
HYPOTHESIS = "H09"
ARMS = {Role.CONTROL: "mask", Role.TREATED: "healthy"}
"""What the kept file calls the runs of an arm."""
UNHEARD = "Not among the findings that were kept, so it was no alarm."


def carry_on(kept: Json, config: RunConfig, runs: Path, looks: Sequence[int], jobs: int) -> Json:
    """The plan, the runs and the verdict."""
    plan = plan_of(kept, config, runs, looks)
    for arm in plan.arms:
        for seed in range(looks[-1]):
            name = f"{ARMS[arm.role]}-{seed}"
            if name in kept["runs"]:
                _restore(kept, name, folder_of(arm, seed, runs))
    folder = runs / "experiments" / plan.name
    result = conduct(plan, folder, runs, Local(jobs))
    return result.to_json(folder) | {"plan": result.plan.to_json()}


def plan_of(kept: Json, config: RunConfig, runs: Path, looks: Sequence[int]) -> Plan:
    """That of `flatline investigate`, without the arms that cannot learn."""
    hypothesis = find(HYPOTHESIS)
    setup = Setup(
        config=config, runs=runs, experiments=runs, looks=tuple(looks), name="h09-more-pairs"
    )
    arms = hypothesis.experiment(config)
    assert arms is not None, "the config plants no fault of H09"
    plan = plan_for(hypothesis, arms, setup, family=kept["verdict"]["plan"]["family"])
    return replace(plan, arms=tuple(arm for arm in plan.arms if arm.role in ARMS))


def _restore(kept: Json, name: str, folder: Path) -> None:
    """A run of an earlier visit as a finished one, unless it is there."""
    if (folder / OUTCOME_FILE).exists():
        return
    run = kept["runs"][name]
    problems = kept["problems"][run["settings"]["task"]]
    before, after = (_score(one, problems) for one in (run["heldout"][0], run["heldout"][-1]))
    outcome = Outcome(
        seconds=float(sum(run["steps"]["seconds"])),
        steps=len(run["steps"]["step"]),
        trace=".",
        problems_digest=digest_of(problems),
        outcomes={HELDOUT: _gain(before, after)},
        findings={HYPOTHESIS: _sight(run)},
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / OUTCOME_FILE, [json.dumps(outcome.to_json(), indent=2)])


def _score(one: Json, problems: list[str]) -> HeldOutScore:
    plays = one["plays"]
    return HeldOutScore(step=one["step"], problems=problems, rewards=plays[COMBINED], plays=plays)


def _gain(before: HeldOutScore, after: HeldOutScore) -> Measure:
    start, end = (float(np.mean(score.rewards)) for score in (before, after))
    return Measure(value=end - start, before=start, after=end, gain=after.since(before))


def _sight(run: Json) -> Sight:
    for found in run["diagnosis"]["findings"]:
        if found["hypothesis"] == HYPOTHESIS:
            return Sight(level=found["level"], text=found["text"], proven=found["level"] == "fault")
    return Sight(level="ok", text=UNHEARD, proven=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kept", type=Path)
    parser.add_argument("--config", type=Path, required=True, help="of the run, with its fault")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--looks", default="3,4", help="numbers of pairs at which one looks")
    parser.add_argument("--jobs", type=int, default=2, help="trainings that share the GPU")
    given = parser.parse_args()
    looks = [int(word) for word in given.looks.split(",")]
    try:
        found = carry_on(
            json_in(given.kept), load_config(given.config), given.runs, looks, given.jobs
        )
    except FlatlineError as error:
        sys.exit(f"pairs: {error}")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
