"""Alarms in training: at which step they come, and how often they cry wolf.

    python benchmarks/alarms.py train FOLDER [--only PATTERN] [--minutes M]   # makes the runs

The runs were named before the alarms were written (commit of this list): harmful faults of the
benchmark and healthy setups, both in an order drawn by lot, with seeds that nothing was developed
on. As many of them count as were trained; none is left out because of what it shows.
"""

import argparse
import random
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from flatline.bench.setups import held_out

STEPS_FAULTY, STEPS_HEALTHY = 20, 40
SEED = 7
"""Of the faulty runs; the benchmark has 0 to 2, development 50 and up."""
FIRST_SEED = 300
"""Of the healthy runs; the benchmark ends below 200."""
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


def train(out: Path, only: str, minutes: float) -> None:
    """Train what is not trained yet, in the order of the list."""
    import torch
    from transformers.utils import logging

    from flatline.config import RunConfig
    from flatline.training.run import train as run

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    end = time.monotonic() + 60 * minutes
    for name, changes in planned().items():
        folder = out / name
        if not fnmatch(name, only) or time.monotonic() > end or not _claimed(folder):
            continue
        config = RunConfig.from_dict(
            {**changes, "eval_limit": 0, "output_dir": str(folder)}, source=name
        )
        run(config)
        (folder / "trained").touch()


def _claimed(folder: Path) -> bool:
    """Whether no other process trains it or has done so."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("folder", type=Path)
    training.add_argument("--only", default="*", metavar="PATTERN")
    training.add_argument("--minutes", type=float, default=1e9)
    args = parser.parse_args()
    train(args.folder, args.only, args.minutes)


if __name__ == "__main__":
    main()
