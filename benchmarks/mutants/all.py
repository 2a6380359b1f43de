"""Every configuration in one queue; the same command goes on where it stopped.

    python benchmarks/mutants/all.py --split development --jobs 2 --minutes 9 --out runs/mutants
    flatline bench mutants report runs/mutants

Mutants come first, then whole trainings of those that learn otherwise (`--seeds`), seed by seed.
Another release of TRL, unpacked from its wheel, is put in front: `PYTHONPATH=trl-1.12.0:src`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from flatline.bench.mutants.draw import Split
from flatline.bench.mutants.results import missed_in
from flatline.bench.mutants.study import STUDY_FILE, Change, Study
from flatline.bench.mutants.work import planned, run
from flatline.cli.bench_mutants import TRAINER, Progress

HERE = Path(__file__).resolve().parent
OWN = ("own",)
RLOO = ("trl.trainer.rloo_trainer",)
SCHEDULE = ("transformers.optimization", "transformers.trainer_pt_utils")
CONFIGURATIONS = {
    "lora": ("word_problems.py", "lora", TRAINER, 300),
    "two-iterations": ("word_problems.py", "two-iterations", TRAINER, 300),
    "full": ("word_problems.py", "full", TRAINER, 300),
    "sequences": ("word_problems.py", "sequences", TRAINER, 300),
    "cispo": ("word_problems.py", "cispo", TRAINER, 300),
    "tools": ("calculator.py", "lora", TRAINER, 300),
    "tools-no-kl": ("calculator.py", "no-kl", TRAINER, 300),
    "own-words": ("word_problems.py", "lora", OWN, 100),
    "own-tools": ("calculator.py", "lora", OWN, 100),
    "schedule": ("word_problems.py", "lora", SCHEDULE, 40),
    "adapters": ("word_problems.py", "lora", ("peft.tuners.lora.layer",), 60),
    "loop": ("plain_loop.py", "", OWN, 200),
    "merge": ("plain_loop.py", "", ("peft.tuners.lora.layer",), 60),
    "short": ("word_problems.py", "short", TRAINER, 100),
    "loop-twice": ("plain_loop.py", "twice", OWN, 20),
    "rloo": ("word_problems.py", "rloo", RLOO, 300),
    "rloo-twice": ("word_problems.py", "rloo-twice", RLOO, 100),
}
"""Name -> script, its argument, what is changed, and how many mutants are drawn."""
ONE_IN = 3
"""Of mutants that change nothing, so many share one checkup: they are the most, and are alike."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", type=Split, default=Split.DEVELOPMENT, help="or test: run once")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="start nothing after so many")
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"))
    parser.add_argument("--only", help="configurations, with commas")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants that are drawn")
    parser.add_argument(
        "--beside", type=Path, help="draw no change that was tried in these studies"
    )
    parser.add_argument("--one-in", type=int, default=ONE_IN, help="of those that change nothing")
    parser.add_argument("--seeds", type=int, default=0, help="whole trainings of each that learns")
    parser.add_argument(
        "--again", type=Path, help="only what these studies have missed: no test any more"
    )
    parser.add_argument("--plan", action="store_true", help="count the mutants, run none")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(CONFIGURATIONS)
    studies = [_study(name, args) for name in names]
    if args.again:
        studies = [study for study in studies if study.only]
    if args.plan:
        _print_plan(studies)
        return
    left = run(studies, jobs=args.jobs, minutes=args.minutes, on_done=Progress())
    print(f"{left[0]} mutants and {left[1]} trainings are left.")


def _study(name: str, args: argparse.Namespace) -> Study:
    script, argument, modules, count = CONFIGURATIONS[name]
    file = HERE / script
    return Study(
        folder=args.out.resolve() / name,
        script=file,
        arguments=(argument,) if argument else (),
        modules=(str(file),) if modules == OWN else modules,
        split=args.split,
        count=max(1, round(count * args.share)),
        seed=list(CONFIGURATIONS).index(name),
        one_in=args.one_in,
        seeds=args.seeds,
        beside=args.beside.resolve() if args.beside else None,
        only=_missed(args.again / name) if args.again else None,
    )


def _missed(folder: Path) -> frozenset[Change]:
    return missed_in(folder) if (folder / STUDY_FILE).is_file() else frozenset()


def _print_plan(studies: Sequence[Study]) -> None:
    """Mutants that would be drawn and are not tried yet, beside all of this half that are left."""
    waiting = planned(studies)
    for study, (drawn, left) in zip(studies, waiting, strict=True):
        print(f"{study.folder.name}: {drawn} drawn of {left}")
    print(f"{sum(drawn for drawn, _ in waiting)} drawn of {sum(left for _, left in waiting)}")


if __name__ == "__main__":
    main()
