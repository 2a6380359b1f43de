"""A warm start: supervised fine-tuning on plays of training problems, before RL.

A model that does not follow the format yet earns nothing, and GRPO learns from differences between
rewards. A few minutes of imitation bring it to a baseline that RL can climb from. The folder holds
`model/` (adapters merged, so that `flatline train --model` starts from it), `warmstart.json` (what
was done, which problems were used, how well the model did before and after) and `rest.jsonl` (the
problems that were not used).
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import set_seed

from flatline.config import LAB, LAB_RATES, RunConfig
from flatline.errors import ConfigError
from flatline.evaluate import Evaluation, compare, evaluate
from flatline.files import write_atomically
from flatline.rollout.chat import ChatFormat
from flatline.rollout.engine import Engine
from flatline.rollout.playable import max_context_of
from flatline.rollout.record import Author, Rollout
from flatline.stats import Estimate, cluster_mean
from flatline.tasks.base import Problem, Task
from flatline.training.arguments import lora_config
from flatline.training.models import LoadedPolicy, load_policy
from flatline.training.rollouts import limits_of, sampling_of
from flatline.training.run import MODEL
from flatline.training.trainer import heldout_specs, load_problems, lora_that_matches
from flatline.training.warmstart_checks import (
    FILE,
    refuse_full_disk,
    refuse_seen,
    refuse_too_few,
    refuse_unwritable_tokens,
    refuse_what_cannot_be_done,
)
from flatline.training.warmstart_fit import fit
from flatline.training.warmstart_plays import fitted
from flatline.training.warmstart_rest import chosen, write_rest

EPOCHS = 2.0
"""Passes over the chosen problems where no length is given."""
RATES = {"lora": 2e-4, "full": 1e-5}
"""Learning rates of imitation; the lab policy has its own."""

Step = Callable[[str, int, int, str], None]
"""Told of progress: which stage, how much is done, of how much, and a word on how it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Everything that decides the outcome of one warm start."""

    run: RunConfig
    """Task, model, data, sizes, adapters, limits and seed, as for a training run."""
    share: float = 0.5
    """Share of the training problems that may be imitated."""
    careless: float = 0.4
    """How often the plays make mistakes: 0 never, 1 most often; see `warmstart_plays.RATES`."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"--share {self.share} must be above 0 and at most 1.")
        if not 0 <= self.careless <= 1:
            raise ConfigError(f"--careless {self.careless} must be between 0 and 1.")

    @property
    def rate(self) -> float:
        """The learning rate, chosen for the model where none was given."""
        if self.run.learning_rate is not None:
            return self.run.learning_rate
        rates = LAB_RATES if self.run.model == LAB else RATES
        return rates["lora" if self.run.peft else "full"]

    def steps(self, problems: int) -> int:
        """Optimizer steps: as many as were asked for, or as the epochs make."""
        if self.run.max_steps is not None:
            return self.run.max_steps
        epochs = EPOCHS if self.run.num_epochs is None else self.run.num_epochs
        return max(1, round(epochs * problems / self.run.batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a warm start came to."""

    output_dir: Path
    """Its folder."""
    used: tuple[str, ...]
    """Ids of the problems that were imitated."""
    rest: str | None
    """Spec of the problems that were not; None where none is left."""
    heldout: str | None
    """Spec of the held-out problems; None where none were played."""
    left_out: Mapping[str, int]
    """Plays that could not be imitated, by what stood in their way."""
    plays: int
    """Plays that were imitated."""
    reward: float
    """Mean reward of these plays themselves."""
    losses: tuple[float, ...]
    """Of every step, in nats per token of the player."""
    before: Evaluation | None
    """On held-out problems; None where none were played."""
    after: Evaluation | None
    """The same problems and random numbers with the saved weights."""
    seconds: float
    """Wall time, evaluations included."""

    def to_json(self) -> dict[str, Any]:
        tail = self.losses[-max(1, len(self.losses) // 10) :]
        return {
            "output_dir": str(self.output_dir),
            "model": str(self.output_dir / MODEL),
            "rest": self.rest,
            "heldout": self.heldout,
            "problems": len(self.used),
            "left_out": dict(self.left_out),
            "plays": {"count": self.plays, "reward": self.reward},
            "steps": len(self.losses),
            "loss": {"first": self.losses[0], "last": sum(tail) / len(tail)},
            "before": _with_entropy(self.before),
            "after": _with_entropy(self.after),
            "gain": self._gain(),
            "seconds": self.seconds,
        }

    def _gain(self) -> dict[str, Any] | None:
        if self.before is None or self.after is None:
            return None
        gain: dict[str, Any] = compare(self.before, self.after).to_json()["parts"]
        return gain


def warmstart(config: WarmStart, *, on_step: Step) -> Result:
    """Imitate, evaluate and save. The folder appears finished, or without `warmstart.json`."""
    start = time.perf_counter()
    folder = Path(config.run.output_dir)
    refuse_what_cannot_be_done(folder)
    task, problems, heldout = load_problems(config.run)
    refuse_seen(problems, heldout)
    policy, chat = _loaded(config.run, task)
    if config.run.peft:
        refuse_unwritable_tokens(policy.model, chat)
    refuse_full_disk(policy.model, folder)
    most = max_context_of(policy.model, None)
    plays, left_out = make_plays(config, task, chat, problems, most, on_step)

    def score(stage: str, model: Any) -> Evaluation | None:
        # An engine of its own each time: its cache must not fill the memory that training needs.
        engine = _engine(config.run, LoadedPolicy(model, policy.tokenizer), task, chat)
        return _played(config.run, engine, heldout, on_step, stage) if heldout else None

    before = score("before", policy.model)
    model, losses = _imitated(config, policy.model, plays, on_step)
    save_model(model, policy.tokenizer, chat, folder / MODEL)
    after = score("after", model)
    used = tuple(sorted({play.problem_id for play in plays}))
    result = Result(
        output_dir=folder,
        used=used,
        rest=write_rest(config.run, used, folder),
        heldout=heldout_specs(config.run) if heldout else None,
        left_out=left_out,
        plays=len(plays),
        reward=sum(play.score.reward for play in plays) / len(plays),
        losses=tuple(losses),
        before=before,
        after=after,
        seconds=time.perf_counter() - start,
    )
    _write_record(config, result)
    return result


def make_plays(
    config: WarmStart,
    task: Task,
    chat: ChatFormat,
    problems: Sequence[Problem],
    max_context: int,
    on_step: Step,
) -> tuple[list[Rollout], Counter[str]]:
    """As many plays as the steps will see, each pass over the problems with mistakes of its own."""
    mine = chosen(problems, config.share, config.run.seed)
    wanted = config.steps(len(mine)) * config.run.batch_size
    limits = replace(limits_of(config.run), max_context=max_context)
    plays: list[Rollout] = []
    left_out: Counter[str] = Counter()
    for again in range(-(-wanted // len(mine))):
        for problem in mine[: wanted - again * len(mine)]:
            rng = random.Random(f"warmstart-{config.run.seed}-{again}-{problem.id}")
            play, reason = fitted(
                chat, task, problem, rng=rng, careless=config.careless, limits=limits
            )
            if play is None:
                left_out[reason] += 1
            else:
                plays.append(play)
            on_step("plays", len(plays) + left_out.total(), wanted, "")
    refuse_too_few(plays, left_out)
    return plays, left_out


def token_entropy(evaluation: Evaluation) -> Estimate:
    """Nats per token that the policy wrote: the mean surprise at its own samples."""
    values: list[float] = []
    clusters: list[str] = []
    for rollout in evaluation.rollouts:
        pairs = zip(rollout.logprobs, rollout.authors, strict=True)
        own = [-logprob for logprob, author in pairs if author is Author.MODEL]
        values += own
        clusters += [rollout.problem_id] * len(own)
    return cluster_mean(values, clusters, bounds=(0.0, max(1.0, *values)))


def save_model(model: Any, tokenizer: Any, chat: ChatFormat, folder: Path) -> None:
    """Weights and tokenizer, with the template that was imitated. Whole, or not there."""
    tokenizer.chat_template = chat.template
    shutil.rmtree(folder, ignore_errors=True)  # of a warm start that was never finished
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        model.save_pretrained(Path(made) / MODEL)
        tokenizer.save_pretrained(Path(made) / MODEL)
        (Path(made) / MODEL).rename(folder)


def _loaded(config: RunConfig, task: Task) -> tuple[LoadedPolicy, ChatFormat]:
    policy = load_policy(
        config.model,
        # As in training: adapters stay in fp32 beside it, and all weights do where all are trained.
        dtype="bfloat16" if config.bf16 and config.peft else "float32",
        chat_template=config.chat_template,
    )
    template = policy.tokenizer.chat_template if config.chat_template else None
    chat = ChatFormat(policy.tokenizer, task.tools, template=template)
    if chat.notice:
        print(f"flatline: {chat.notice}", file=sys.stderr)
    return policy, chat


def _engine(config: RunConfig, policy: LoadedPolicy, task: Task, chat: ChatFormat) -> Engine:
    return Engine(
        policy.model,
        policy.tokenizer,
        task,
        sampling=sampling_of(config),
        limits=limits_of(config),
        chat=chat,
        max_batch=config.max_batch,
    )


def _played(
    config: RunConfig, engine: Engine, heldout: Sequence[Problem], on_step: Step, stage: str
) -> Evaluation:
    done: list[Rollout] = []

    def count(rollout: Rollout) -> None:
        done.append(rollout)
        on_step(stage, len(done), len(heldout) * config.eval_samples, "")

    return evaluate(
        heldout,
        engine,
        samples=config.eval_samples,
        seed=config.eval_seed,
        on_done=count,
        about={"task": config.task, "model": config.model if stage == "before" else MODEL},
    )


def _imitated(
    config: WarmStart, model: Any, plays: Sequence[Rollout], on_step: Step
) -> tuple[Any, list[float]]:
    """The model after imitation, with its adapters merged, and the losses."""
    run = config.run
    steps = run.max_steps or -(-len(plays) // run.batch_size)
    set_seed(run.seed)
    if run.peft:
        from peft import get_peft_model

        with lora_that_matches(run):
            model = get_peft_model(model, lora_config(run))
    losses = fit(
        model,
        plays,
        run,
        steps=steps,
        rate=config.rate,
        on_step=lambda step, loss: on_step("imitation", step, steps, f"loss {loss:.3f}"),
    )
    model = model.merge_and_unload() if run.peft else model
    return model.eval(), losses


def _with_entropy(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {**evaluation.to_json(), "entropy": token_entropy(evaluation).to_json()}


def _write_record(config: WarmStart, result: Result) -> None:
    record = {
        "config": {**config.run.to_dict(), "share": config.share, "careless": config.careless},
        "learning_rate": config.rate,
        **result.to_json(),
        "used": list(result.used),
        "losses": list(result.losses),
    }
    write_atomically(result.output_dir / FILE, [json.dumps(record, indent=2)])
