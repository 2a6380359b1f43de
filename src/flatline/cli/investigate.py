"""`flatline investigate`: hypotheses -> experiments -> verdicts, and the journal keeps them.

It takes the flags of `flatline train`, which describe the setup whose reward is flat; with a
journal, `setup.toml` describes it, and a flag that is given goes before the file.
"""

import inspect
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatline.cli import options
from flatline.cli.output import print_json
from flatline.cli.text import visible
from flatline.cli.train import TrainCommand, config_of, train
from flatline.errors import ConfigError, TooFewSeeds, needing

if TYPE_CHECKING:
    from rich.console import Console

    from flatline.experiment import Executor, Progress
    from flatline.hypotheses.base import Hypothesis
    from flatline.investigation import Conclusion, Setup
    from flatline.journal import Journal

NOTHING, CAUSE = 0, 1
"""Exit codes: no cause was validated, or one was; 2 is bad input."""
TYPED = "flatline.investigate.typed"
"""Where the context of the command keeps its words."""
LEFT_OUT = ("task", "seed", "output_dir", "run_name", "resume_from_checkpoint", "dry_run", "json")
"""Flags of `flatline train` that an experiment sets itself."""

Codes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[Hnn]...", help="Hypotheses to test; all that are open where none."),
]
JournalDir = Annotated[
    Path | None, typer.Option("--journal", help="Folder of the journal that keeps the verdicts.")
]
TaskOption = Annotated[str | None, typer.Option("--task", help="musique, gsm8k or toolmath.")]
Runs = Annotated[Path, typer.Option("--runs", help="Folder of the runs; finished ones are kept.")]
Outcome = Annotated[
    str,
    typer.Option(
        help="What is compared: heldout_reward, reward or metric:NAME; "
        "metric:-NAME where less of it is better."
    ),
]
Smallest = Annotated[
    float, typer.Option("--smallest-effect", help="The smallest gain in the outcome that matters.")
]
Seeds = Annotated[int, typer.Option("--seeds", help="Matched seeds at most; checked from 3 on.")]
Where = Annotated[str, typer.Option("--executor", help="local, or ray.")]
Jobs = Annotated[
    int | None, typer.Option(help="Runs at once; by default one per GPU, or per core.")
]
Command = Annotated[
    str | None,
    typer.Option(help="Your own command: `python train.py --beta {kl_beta} --seed {seed}`."),
]
ArmsOption = Annotated[
    str | None,
    typer.Option("--arms", help="With --command: `kl_beta=0.04,0.0`, present one first."),
]
ScriptOption = Annotated[
    Path | None,
    typer.Option(
        "--script", help="Your own training script; its arguments come after `--`, at the end."
    ),
]
ScriptWords = Annotated[list[str] | None, typer.Option("--script-word", hidden=True)]
Launch = Annotated[
    str,
    typer.Option(
        "--launch", help="How the script is started: `accelerate launch --num_processes 2`."
    ),
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="With --script: end every run after this many steps."),
]
Budget = Annotated[
    str | None,
    typer.Option("--budget", help="With --script: begin no run that ends later: `2h`, `90m`."),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--train-anyway",
        help="Run the experiment even where the mechanism is absent, or --seeds too few to decide.",
    ),
]
Name = Annotated[str | None, typer.Option(help="Of the experiment; the hypothesis's own if none.")]


class InvestigateCommand(TrainCommand):
    """What comes after `--` are the arguments of the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        if "--script" in args and "--" in args:
            at = args.index("--")
            args = [*args[:at], *(f"--script-word={word}" for word in args[at + 1 :])]
        ctx.meta[TYPED] = typed
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TooFewSeeds as error:
            again = shlex.join(_with_seeds(ctx.meta[TYPED], error.needed))
            raise ConfigError(f"{error}\nType `flatline investigate {again}`.") from error


def _with_seeds(words: list[str], seeds: int) -> list[str]:
    """What was typed, with another number of matched seeds."""
    end = words.index("--") if "--" in words else len(words)
    before, script = words[:end], words[end:]
    kept = [
        word
        for at, word in enumerate(before)
        if not word.startswith("--seeds") and before[at - 1 : at] != ["--seeds"]
    ]
    return [*kept, "--seeds", str(seeds), *script]


def investigate(**given: Any) -> None:
    """Test hypotheses: is the mechanism present, and does removing it help?"""
    from flatline.investigation.plans import refuse_too_few_seeds

    asked = {name: given.pop(name) for name in _OWN}
    journal = _journal(asked["journal"])
    setup = _setup(asked, given, journal)
    hypotheses = _hypotheses(asked["hypotheses"], journal)
    executor = _executor(asked["executor"], asked["jobs"])
    _refuse_nothing_to_train(asked, given["config"])
    _refuse_one_name_for_several(asked["name"], len(hypotheses))
    if not setup.train_anyway:
        refuse_too_few_seeds(setup.rule)  # even for one effect; how many there are, runs will show
    with _testing(journal, hypotheses), _watching(quiet=asked["json"]) as listener:
        found = _conclusions(setup, hypotheses, executor, listener, asked)
        verdicts = [_kept(one, journal, asked["json"]) for one in found]
    if asked["json"]:
        print_json(verdicts[0] if len(verdicts) == 1 else verdicts)
    raise typer.Exit(CAUSE if any(v["verdict"] == "validated" for v in verdicts) else NOTHING)


def _refuse_nothing_to_train(asked: dict[str, Any], config: Path | None) -> None:
    if config is None and not any(
        asked[name] for name in ("journal", "task", "command", "arms", "script")
    ):
        codes = " ".join([*(asked["hypotheses"] or ()), ""])
        raise ConfigError(
            "Which setup is investigated? No task, journal, script or command is named.\n"
            "An experiment is many training runs of it, so it is not guessed.\nType one of:\n"
            f"  flatline investigate {codes}--task musique    (and the flags of the run)\n"
            f"  flatline investigate {codes}--journal DIR\n"
            f"  flatline investigate {codes}--script train.py -- --its-own-flags\n"
            "  flatline investigate H03 --arms kl_beta=0.04,0.0 "
            '--command "python train.py --beta {kl_beta} --seed {seed}"'
        )


def _refuse_one_name_for_several(name: str | None, hypotheses: int) -> None:
    if name is not None and hypotheses > 1:
        raise ConfigError(
            f"--name {name} is that of one experiment, and {hypotheses} hypotheses are to be "
            f"tested.\nType one of them: `flatline investigate H09 --name {name}`."
        )


def _journal(folder: Path | None) -> "Journal | None":
    from flatline.journal import Journal

    return None if folder is None else Journal.open(folder)


@contextmanager
def _testing(journal: "Journal | None", hypotheses: "list[Hypothesis]") -> Iterator[None]:
    """The board shows what is being tested; an interrupted test can be seen there, too, and what
    was never begun stands where it stood."""
    from flatline.journal import Status, update_status

    if journal is None:
        yield
        return
    before = [update_status(journal, one.id, "testing") for one in hypotheses]
    try:
        yield
    except TooFewSeeds:
        still = {one.code for one in journal.read().entries if one.status is Status.TESTING}
        for entry in before:
            if entry.code in still:
                update_status(journal, entry.code, entry.status, entry.confidence)
        raise


def _setup(asked: dict[str, Any], given: dict[str, Any], journal: "Journal | None") -> "Setup":
    from flatline.investigation import Setup

    if journal is not None and given["config"] is None and (journal.path / "setup.toml").exists():
        given["config"] = journal.path / "setup.toml"
    given["task"] = asked["task"]
    beside = journal.path.resolve() if journal else None
    return Setup(
        config=config_of(given),
        runs=asked["runs"],
        # Plans lie beside the runs: the journal keeps a copy of what they came to.
        experiments=asked["runs"] / "experiments" / (beside.name if beside else "alone"),
        outcome=asked["outcome"],
        smallest_effect=asked["smallest_effect"],
        looks=_looks(asked["seeds"]),
        train_anyway=asked["train_anyway"],
        name=asked["name"],
    )


def _looks(seeds: int) -> tuple[int, ...]:
    if seeds < 2:
        raise ConfigError(
            f"--seeds {seeds}: one seed says nothing about the spread between seeds.\n"
            "Type `--seeds 3` or more; 6 is usual."
        )
    return tuple(range(min(3, seeds), seeds + 1))


def _hypotheses(codes: list[str] | None, journal: "Journal | None") -> "list[Hypothesis]":
    from flatline.hypotheses import HYPOTHESES, find

    if codes:
        return [find(code) for code in dict.fromkeys(codes)]
    if journal is None:
        return [one for one in HYPOTHESES if one.id != "H00"]
    from flatline.journal.roadmap import plan

    known = [step.entry.code for step in plan(journal).steps if step.entry.code.startswith("H")]
    if not known:
        raise ConfigError(
            f"Every hypothesis of {journal.path} has a verdict.\n"
            "Name one to test it again, or add one with `flatline journal new Hnn`."
        )
    return [find(code) for code in known]


def _executor(name: str, jobs: int | None) -> "Executor":
    from flatline.experiment import Local, RayExecutor

    if name == "local":
        return Local(jobs)
    if name == "ray":
        return RayExecutor()
    raise ConfigError(f"--executor {name!r} is not known.\nType `local` or `ray`.")


def _conclusions(
    setup: "Setup",
    hypotheses: "list[Hypothesis]",
    executor: "Executor",
    listener: "Display",
    asked: dict[str, Any],
) -> "Iterable[Conclusion]":
    from flatline.investigation import investigate, investigate_command

    command, choice = asked["command"], asked["arms"]
    if asked["script"] is not None:
        return _of_script(setup, hypotheses, executor, listener, asked)
    if command is None and choice is None:
        return investigate(setup, hypotheses, executor, listener)
    if command is None or choice is None or len(hypotheses) != 1:
        raise ConfigError(
            "An experiment with your own command needs one hypothesis, the command, and the "
            'values to compare.\nType `flatline investigate H03 --command "python train.py '
            '--beta {kl_beta} --seed {seed}" --arms kl_beta=0.04,0.0`.'
        )
    return [
        investigate_command(
            setup, hypotheses[0], executor, listener, command=command, choice=choice
        )
    ]


def _of_script(
    setup: "Setup",
    hypotheses: "list[Hypothesis]",
    executor: "Executor",
    listener: "Display",
    asked: dict[str, Any],
) -> "Iterable[Conclusion]":
    with needing("An experiment with a script"):
        from flatline.investigation.script import Script, investigate_script
    script = Script(
        path=asked["script"],
        arguments=tuple(asked["script_word"] or ()),
        launch=asked["launch"],
        steps=asked["steps"],
    )
    budget = None if asked["budget"] is None else _seconds(asked["budget"])
    return investigate_script(setup, script, hypotheses, executor, listener, budget=budget)


def _seconds(text: str) -> float:
    """`2h`, `90m` or `45s`."""
    number, unit = text[:-1], {"h": 3600.0, "m": 60.0, "s": 1.0}.get(text[-1:].lower())
    try:
        if unit is not None and float(number) > 0:
            return float(number) * unit
    except ValueError:
        pass
    raise ConfigError(
        f"--budget {text!r} is no time.\nType hours, minutes or seconds: `2h`, `90m`."
    )


def _kept(conclusion: "Conclusion", journal: "Journal | None", json: bool) -> dict[str, Any]:
    """Write it into the journal, say it, and return it."""
    verdict = conclusion.verdict.to_json()
    if conclusion.change:
        verdict["change"] = conclusion.change
    if journal is not None:
        from flatline.journal import record

        record(journal, conclusion.plan, conclusion.result, verdict, conclusion.curves())
    if not json:
        _print(conclusion)
    return verdict


def _print(conclusion: "Conclusion") -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from flatline.hypotheses import find
    from flatline.journal.entry import Status, standing

    verdict = conclusion.verdict
    found = standing(verdict.hypothesis, Status(verdict.ruling.value))
    console = Console(highlight=False)
    name = f"{verdict.hypothesis} {find(verdict.hypothesis).name}"
    style = "bold red" if verdict.ruling == "validated" else "bold"
    console.print(
        Text.assemble((f"{found.upper()}  ", style), (name, "bold")),
        Text(f"confidence {verdict.confidence}", style="dim"),
    )
    lines = [verdict.reason, f"What would change it: {verdict.would_change}"]
    if conclusion.change:
        lines.append(conclusion.change)
    console.print(Padding(Text(visible("\n".join(lines))), (0, 0, 1, 4)))


class Display:
    """Says what begins, and draws a bar for every arm."""

    def __init__(self, console: "Console", *, quiet: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """What begins now; the bars of what came before are done with."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()
        self._bars.console.print(visible(text), style="dim", highlight=False, markup=False)

    def progress(self, progress: "Progress") -> None:
        going = (progress.step or 0) / (progress.steps_planned or 1) if progress.step else 0.0
        runs = f"{progress.seeds_done} of at most {progress.seeds_planned} runs"
        if progress.step is not None:
            runs += f", step {progress.step} of {progress.steps_planned or '?'}"
        if progress.arm not in self._tasks:
            name = visible(progress.arm)
            self._tasks[progress.arm] = self._bars.add_task(name, total=1.0, runs=runs)
        self._bars.update(
            self._tasks[progress.arm],
            total=progress.seeds_planned,
            completed=progress.seeds_done + min(going, 1.0),
            runs=runs,
        )

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


@contextmanager
def _watching(*, quiet: bool) -> Iterator[Display]:
    from rich.console import Console

    with Display(Console(stderr=True), quiet=quiet) as display:
        yield display


_OWN: dict[str, tuple[Any, Any]] = {
    "hypotheses": (Codes, None),
    "journal": (JournalDir, None),
    "task": (TaskOption, None),
    "command": (Command, None),
    "arms": (ArmsOption, None),
    "script": (ScriptOption, None),
    "script_word": (ScriptWords, None),
    "launch": (Launch, ""),
    "steps": (Steps, None),
    "budget": (Budget, None),
    "outcome": (Outcome, "heldout_reward"),
    "smallest_effect": (Smallest, 0.05),
    "seeds": (Seeds, 6),
    "train_anyway": (Anyway, False),
    "name": (Name, None),
    "runs": (Runs, Path("runs")),
    "executor": (Where, "local"),
    "jobs": (Jobs, None),
    "json": (options.Json, False),
}
"""Flags of its own, and what they are where they are not given."""


def _signature() -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter(name, kind, default=default, annotation=hint)
        for name, (hint, default) in _OWN.items()
    ]
    taken = inspect.signature(train).parameters.values()
    left_out = (*LEFT_OUT, *_OWN)
    return inspect.Signature([*own, *(p for p in taken if p.name not in left_out)])


investigate.__signature__ = _signature()  # type: ignore[attr-defined]
investigate.__annotations__ = {p.name: p.annotation for p in _signature().parameters.values()}
