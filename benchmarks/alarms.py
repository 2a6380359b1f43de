"""Alarms in training: at which step they come, and how often they cry wolf.

    python benchmarks/alarms.py train FOLDER [--only PATTERN] [--minutes M] [--long]  # makes runs
    python benchmarks/alarms.py judge FOLDER [--only PATTERN]      # each of them, as it grows
    python benchmarks/alarms.py pack FOLDER                        # into docs/alarms/results.json
    python benchmarks/alarms.py look RUN ...                       # any runs or logs, step by step
    python benchmarks/alarms.py table                             # of them; docs/answers.md sums up
    python benchmarks/alarms.py noise [--logs 200] [--whole 20]    # logs of nothing but noise

The runs were named before the alarms were written (the commit of this list): harmful faults of the
benchmark and healthy setups, both in an order drawn by lot, with seeds that nothing was developed
on. As many of them count as were trained; none is left out because of what it shows. A healthy run
is looked at after every step, which is more often than in training. A faulty one is looked at as in
training: where a hundredth of the time that was trained pays for the look, and at the end.

`train` and `judge` may run many times side by side on one folder: a run is taken by one of them. A
faulty run in which nothing was told within its 20 steps is trained again to 40 by `train --long`,
since the benchmark names faults after 40; where there is such a run, it is the one that counts.
"""

import argparse
import json
import random
import statistics
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from flatline.alarms.earned import Earned
from flatline.alarms.lookout import Lookout
from flatline.alarms.trends import CURVES, Watched
from flatline.bench.shares import exact_share
from flatline.files import write_atomically
from flatline.trace import Trace
from flatline.trace.importers import open_log

sys.path.append(str(Path(__file__).parents[1]))
from bench.setups import held_out

RESULTS = Path(__file__).parent.parent / "docs" / "alarms" / "results.json"
TRAINED, JUDGING, JUDGED = "trained", "judging", "alarms.json"

STEPS_FAULTY, STEPS_HEALTHY = 20, 40
STEPS_LONG, LONG = 40, "-long"
SEED = 7
"""Of the faulty runs; the benchmark has 0 to 2, development 50 and up."""
FIRST_SEED = 300
"""Of the healthy runs; the benchmark ends below 200."""
STEP_SECONDS = 3.9
"""Of a step that trains alone on a core: the benchmark's own cells (docs/benchmark/results.json).
The runs here shared two cores with others; looks are counted in CPU seconds."""
HARMFUL = (
    "adapter-frozen",
    "adapter-merged-twice",
    "advantage-noise",
    "assistant-tokens-masked",
    "calls-unread",
    "clip-tight",
    "dropout-in-scoring",
    "earlier-turns-stripped",
    "finished-left-out",
    "generation-prompt-missing",
    "gradient-clip-low",
    "groups-mixed",
    "kl-anchor",
    "kl-heavy",
    "kl-wrong-reference",
    "later-turns-lost",
    "learning-rate-high",
    "learning-rate-low",
    "length-weighted",
    "mask-as-attention",
    "only-tool-tokens-trained",
    "optimizer-not-stepping",
    "parser-broken",
    "policy-noised",
    "retokenised",
    "reward-conflict",
    "reward-noise",
    "sampler-never-updated",
    "sampler-temperature",
    "samples-duplicated",
    "sequence-weights",
    "tool-failing",
    "tool-schema-missing",
    "tool-tokens-trained",
    "turn-limit-low",
    "turns-too-few",
    "updates-rounded",
    "verifiers-0.1.3",
    "zero-variance",
)
"""Faults of the benchmark that hurt on MuSiQue at their usual strength, but for `eval-other-path`,
which is about the evaluation and not about a step."""


def planned() -> dict[str, dict[str, Any]]:
    """Settings of every run by name, healthy and faulty ones in turn."""
    draw = random.Random(26)
    faulty = draw.sample(HARMFUL, len(HARMFUL))
    setups = held_out()
    healthy = draw.sample(sorted(setups), 26)
    cells: dict[str, dict[str, Any]] = {}
    for i, fault in enumerate(faulty):
        cells[f"{fault}-s{SEED}"] = {
            "task": "musique",
            "kl_beta": 0.04,
            "seed": SEED,
            "fault": fault,
            "max_steps": STEPS_FAULTY,
        }
        if i < len(healthy):
            cells[f"healthy.{healthy[i]}"] = {
                **setups[healthy[i]],
                "seed": FIRST_SEED + i,
                "max_steps": STEPS_HEALTHY,
            }
    return cells


def silent(out: Path) -> dict[str, dict[str, Any]]:
    """Settings of the longer runs: of faults of which nothing was told in time."""
    cells = {}
    for name, changes in planned().items():
        file = out / name / JUDGED
        if "fault" in changes and file.exists() and not json.loads(file.read_text())["alarms"]:
            cells[name + LONG] = {**changes, "max_steps": STEPS_LONG}
    return cells


def train(out: Path, only: str, minutes: float, *, long: bool) -> None:
    """Train what is not trained yet, in the order of the list."""
    import torch
    from transformers.utils import logging

    from flatline.config import RunConfig
    from flatline.training.run import train as run

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    end = time.monotonic() + 60 * minutes
    for name, changes in (silent(out) if long else planned()).items():
        folder = out / name
        if not fnmatch(name, only) or time.monotonic() > end or not _claimed(folder):
            continue
        config = RunConfig.from_dict(
            {**changes, "eval_limit": 0, "output_dir": str(folder)}, source=name
        )
        run(config)
        (folder / TRAINED).touch()


def _claimed(folder: Path) -> bool:
    """Whether no other process trains it or has done so."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def judge(out: Path, only: str) -> None:
    """The alarms of every run that is trained and not judged yet."""
    for name, changes in {**planned(), **silent(out)}.items():
        folder = out / name
        if not fnmatch(name, only) or (folder / JUDGED).exists():
            continue
        if (folder / TRAINED).exists() and _claimed(folder / JUDGING):
            found = told(folder, always="fault" not in changes)
            facts = {"name": name, "fault": changes.get("fault"), **found}
            write_atomically(folder / JUDGED, [json.dumps(facts)])
            print(name, found["looks"], [(one["step"], one["name"]) for one in found["alarms"]])


def told(folder: Path, *, always: bool) -> dict[str, Any]:
    """What is told of a run while it grows, and what the looks cost."""
    recorded, lookout = open_log(folder), Lookout()
    # A run that is under way lies in files that are not compressed.
    batches = {name: one.to_table().to_batches(64) for name, one in recorded.tables.items()}
    trace = Trace.from_batches(batches, run=recorded.run)
    steps = sorted(trace.steps["step"].astype(int).tolist())
    earned = Earned()
    looks, alarms = 0, []
    for step in steps:
        if always or step == max(steps) or earned.pays(step, max(steps), STEP_SECONDS * step):
            begun = time.process_time()
            alarms += lookout.look(trace.until(step))
            earned.took(time.process_time() - begun, step)
            looks += 1
    facts = {"steps": len(steps), "looks": looks, "seconds": round(earned.spent, 3)}
    return {**facts, "alarms": [one.to_json() for one in alarms]}


def pack(out: Path) -> None:
    """All that were judged, in one file."""
    found = []
    for name in planned():
        judged = [out / one / JUDGED for one in (name + LONG, name)]
        found += [json.loads(file.read_text()) for file in judged if file.exists()][:1]
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, [json.dumps(found, indent=1)])


def table() -> str:
    """When the alarm of each harmful fault comes, and what healthy runs set off."""
    from flatline.faults import find

    runs = json.loads(RESULTS.read_text())
    faulty = sorted((one for one in runs if one["fault"]), key=lambda one: str(one["fault"]))
    healthy = [one for one in runs if not one["fault"]]
    lines = [
        "| planted fault | its hypothesis | first alarm | its own alarm |",
        "|---|---|---|---|",
    ]
    firsts: dict[str, list[float]] = {"fault": [], "suspect": [], "trend": []}
    for run in faulty:
        wanted = [one.fault.hypothesis for one in find(run["fault"])]
        own = [one for one in run["alarms"] if one["code"] in wanted]
        if run["alarms"]:
            firsts[run["alarms"][0]["level"]].append(run["alarms"][0]["step"])
        cells = (run["fault"], "/".join(wanted), _brief(run["alarms"]), _brief(own))
        lines.append(f"| {' | '.join(cells)} |")
    longer = sum(one["steps"] > STEPS_FAULTY for one in faulty)
    lines += [
        f"\n{len(faulty)} faulty runs, {longer} of {STEPS_LONG} steps and the others of "
        f"{STEPS_FAULTY}; first alarm by its kind:\n",
        "| kind | runs | step: median | last |\n|---|---|---|---|",
    ]
    for level, steps in firsts.items():
        middle = f"{statistics.median(steps):g} | {max(steps):g}" if steps else "- | -"
        lines.append(f"| {level} | {len(steps)} | {middle} |")
    lines.append(f"| none | {sum(not one['alarms'] for one in faulty)} | - | - |\n")
    looks = statistics.median(one["looks"] for one in faulty)
    return "\n".join(
        [*lines, *_wolf(healthy), f"\nA faulty run was looked at {looks:g} times (median)."]
    )


def _wolf(healthy: list[dict[str, Any]]) -> list[str]:
    """How many healthy runs set off an alarm, and which."""
    wolf = [one for one in healthy if one["alarms"]]
    share = exact_share(len(wolf), len(healthy))
    steps = sum(one["steps"] for one in healthy)
    told = (
        f"{len(wolf)} of {len(healthy)} healthy runs set off an alarm at any of their {steps} "
        f"steps (exact 95 % interval {share['low']:.1%} to {share['high']:.1%})."
    )
    return [told, *(f"- {one['name']}: {_brief(one['alarms'])}" for one in wolf)]


def _brief(alarms: list[dict[str, Any]]) -> str:
    if not alarms:
        return "none"
    first = alarms[0]
    return f"step {first['step']}: {first['code']} {first['name']} ({first['level']})"


NOISE = {
    "raw": lambda rng, rows: 0.5 + 0.1 * rng.standard_normal(rows),
    "smoothed with 0.5": lambda rng, rows: _smoothed(0.5 + 0.3 * rng.standard_normal(rows), 0.5),
    "smoothed with 0.7": lambda rng, rows: _smoothed(0.5 + 0.3 * rng.standard_normal(rows), 0.7),
    "smoothed with 0.9": lambda rng, rows: _smoothed(0.5 + 0.3 * rng.standard_normal(rows), 0.9),
    "eight rewards of 0 or 1": lambda rng, rows: rng.binomial(8, 0.1, rows) / 8,
    "rises, then stays level": lambda rng, rows: (
        0.4 + 0.3 * np.minimum(np.arange(rows) / 20, 1) + 0.05 * rng.standard_normal(rows)
    ),
}
"""Rewards, a row a step, in which nothing falls."""


def noise(logs: int, whole: int) -> None:
    """How often something is reported about a curve that never falls, at any of its steps."""
    print(
        "| log | rows | reward reported as falling | any alarm, by whole looks |\n|---|---|---|---|"
    )
    for name, make in NOISE.items():
        for rows in (40, 150):
            fell = [_falls(make(np.random.default_rng(seed), rows)) for seed in range(logs)]
            looked = [_any(make(np.random.default_rng(seed), rows)) for seed in range(whole)]
            any_ = f"{sum(looked)} of {whole}" if rows == 40 and whole else "-"
            print(f"| {name} | {rows} | {sum(map(bool, fell))} of {logs} | {any_} |", flush=True)
    print(
        f"\nA fall of 0.3 at step 21 (noise 0.05) is reported at step, median of {logs}: ", end=""
    )
    steps = [_falls(_fallen(np.random.default_rng(seed))) or np.inf for seed in range(logs)]
    print(f"{np.median(steps):g}; never within 60 in {np.isinf(steps).sum()}.")


def _fallen(rng: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(60) < 20, 0.6, 0.3) + 0.05 * rng.standard_normal(60)


def _falls(rewards: np.ndarray) -> int | None:
    """The step at which the reward is said to fall."""
    watched = Watched(CURVES[0])
    for step, value in enumerate(rewards, 1):
        if watched.add(step, np.array([value])):
            return step
    return None


def _any(rewards: np.ndarray) -> bool:
    if len(rewards) > 40:
        return False
    rows = [{"step": i, "reward": float(value)} for i, value in enumerate(rewards, 1)]
    lookout = Lookout()
    return any(lookout.look(Trace.from_rows(steps=rows[:end])) for end in range(1, len(rows) + 1))


def _smoothed(values: np.ndarray, keep: float) -> np.ndarray:
    shown = [values[0]]
    for value in values[1:]:
        shown.append(keep * shown[-1] + (1 - keep) * value)
    return np.array(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "judge", "pack"):
        commands.add_parser(name).add_argument("folder", type=Path)
    for name in ("train", "judge"):
        commands.choices[name].add_argument("--only", default="*", metavar="PATTERN")
    commands.choices["train"].add_argument("--minutes", type=float, default=1e9)
    commands.choices["train"].add_argument("--long", action="store_true")
    commands.add_parser("look").add_argument("runs", type=Path, nargs="+")
    commands.add_parser("table")
    noisy = commands.add_parser("noise")
    noisy.add_argument("--logs", type=int, default=200)
    noisy.add_argument("--whole", type=int, default=20)
    args = parser.parse_args()
    if args.command == "train":
        train(args.folder, args.only, args.minutes, long=args.long)
    elif args.command == "judge":
        judge(args.folder, args.only)
    elif args.command == "pack":
        pack(args.folder)
    elif args.command == "look":
        for run in args.runs:
            found = told(run, always=True)
            print(run, found["steps"], _brief(found["alarms"]), flush=True)
    elif args.command == "table":
        print(table())
    else:
        noise(args.logs, args.whole)


if __name__ == "__main__":
    main()
