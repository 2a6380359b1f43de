"""The rollout engine against TRL's own `environment_factory` loop, in one run.

    python benchmarks/engine.py [--rounds 5] [--threads 1]

Both play the same problems with the lab policy on the CPU in fp32: 8 problems of MuSiQue-World by 8
samples, temperature 1, the same limits. The loops take turns, every round has fresh problems, and
the one that starts alternates: these machines are noisy. Timed is the generation alone, which for
TRL is `GRPOTrainer._generate`, with transformers' `generate` inside; the engine's time also holds
the scoring and the log-probs, which TRL computes later.

The rewards are there to see that both play the same game: their difference should be noise.
"""

import argparse
import os
import statistics
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import torch

from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.sampling import Sampling
from flatline.stats import cluster_mean, paired_difference
from flatline.tasks import make_task
from flatline.tasks.base import Problem, Task
from flatline.training.environment import (
    environment_factory,
    environment_reward,
    environment_rows,
    tokenizer_for_trl,
)
from flatline.training.models import LoadedPolicy, load_policy

PROBLEMS, SAMPLES = 8, 8
MAX_TURNS, MAX_COMPLETION = 8, 512


class Batch(NamedTuple):
    """What one loop made of one batch."""

    seconds: float
    tokens: int
    """Sampled ones only."""
    rewards: list[float]
    turns: list[int]


class EngineLoop:
    def __init__(self, policy: LoadedPolicy, task: Task) -> None:
        limits = Limits(
            max_turns=MAX_TURNS,
            max_new_tokens=MAX_COMPLETION,
            max_completion_tokens=MAX_COMPLETION,
        )
        self._engine = Engine(*policy, task, sampling=Sampling(), limits=limits)

    def play(self, problems: list[Problem], seed: int) -> Batch:
        jobs = [Job(problem, sample) for problem in problems for sample in range(SAMPLES)]
        began = time.perf_counter()
        rollouts = self._engine.play(jobs, seed=seed)
        return Batch(
            seconds=time.perf_counter() - began,
            tokens=sum(sum(rollout.loss_mask) for rollout in rollouts),
            rewards=[rollout.score.reward for rollout in rollouts],
            turns=[len(rollout.turns) for rollout in rollouts],
        )


class TrlLoop:
    def __init__(
        self, policy: LoadedPolicy, task: Task, problems: list[Problem], folder: str
    ) -> None:
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=PROBLEMS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=MAX_COMPLETION,
            max_tool_calling_iterations=MAX_TURNS - 1,
            temperature=1.0,
            report_to=[],
        )
        rows = environment_rows(task, problems)
        self._rows = {row["problem_id"]: row for row in rows}
        self._trainer = GRPOTrainer(
            model=policy.model,
            processing_class=tokenizer_for_trl(policy.tokenizer),
            reward_funcs=self._reward,
            environment_factory=environment_factory(task, problems),
            train_dataset=Dataset.from_list(rows),
            args=args,
        )
        self._trainer.model.eval()
        self._generate = self._trainer._generate
        self._trainer._generate = self._timed_generate
        self._seconds = 0.0
        self._tokens = 0
        self._rewards: list[float] = []
        self._turns: list[int] = []

    def play(self, problems: list[Problem], seed: int) -> Batch:
        torch.manual_seed(seed)
        rows = [self._rows[problem.id] for problem in problems for _ in range(SAMPLES)]
        self._trainer._generate_and_score_completions(rows)
        return Batch(self._seconds, self._tokens, self._rewards, self._turns)

    def _timed_generate(self, prompts: list[Any]) -> Any:
        began = time.perf_counter()
        made = self._generate(prompts)
        self._seconds = time.perf_counter() - began
        by_model = made[2]
        self._tokens = sum(map(sum, by_model))
        return made

    def _reward(self, completions: list[Any], environments: list[Any], **_: Any) -> list[float]:
        self._turns = [sum(m["role"] == "assistant" for m in c) for c in completions]
        self._rewards = environment_reward(completions, environments)
        return self._rewards


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    wanted = options.parse_args()
    torch.set_num_threads(wanted.threads)
    task = make_task("musique")
    problems = task.load(f"lab,,validation[:{PROBLEMS * (wanted.rounds + 1)}]", split="validation")
    policy = load_policy("lab", device="cpu")
    batches: dict[str, list[Batch]] = {"engine": [], "TRL": []}
    with tempfile.TemporaryDirectory() as folder:
        # The engine plays a policy of its own: the trainer may change what it is given.
        trl = TrlLoop(load_policy("lab", device="cpu"), task, problems, folder)
        loops: dict[str, EngineLoop | TrlLoop] = {"engine": EngineLoop(policy, task), "TRL": trl}
        for number in range(wanted.rounds + 1):
            drawn = problems[number * PROBLEMS : (number + 1) * PROBLEMS]
            for name in list(loops) if number % 2 else list(loops)[::-1]:
                batch = loops[name].play(drawn, seed=number)
                if number > 0:  # the first round warms up
                    batches[name].append(batch)
            if number > 0:
                print_round(number, {name: made[-1] for name, made in batches.items()})
    print_summary(batches, threads=wanted.threads)


def print_round(number: int, made: dict[str, Batch]) -> None:
    columns = [
        f"{name} {b.seconds:6.3f} s {b.tokens:5} tokens {b.tokens / b.seconds:6.0f}/s"
        for name, b in made.items()
    ]
    print(f"round {number}: {', '.join(columns)}; {speedup(*made.values()):.2f}x", flush=True)


def speedup(ours: Batch, theirs: Batch) -> float:
    """Tokens per second of ours over theirs: the two sample different episodes."""
    return (ours.tokens / ours.seconds) / (theirs.tokens / theirs.seconds)


def print_summary(batches: dict[str, list[Batch]], *, threads: int) -> None:
    rounds = len(batches["engine"])
    problems_N = np.repeat(np.arange(rounds * PROBLEMS), SAMPLES)
    rewards = {name: np.concatenate([b.rewards for b in made]) for name, made in batches.items()}
    print(f"\nreward, n = {rounds * PROBLEMS} problems of {SAMPLES} plays:")
    for name, made in batches.items():
        turns = statistics.mean(turn for b in made for turn in b.turns)
        print(f"  {name:<8} {cluster_mean(rewards[name], problems_N)}; {turns:.2f} turns a play")
    difference = paired_difference(rewards["TRL"], rewards["engine"], problems_N)
    print(f"  engine - TRL {difference}")
    ratios = [speedup(*pair) for pair in zip(*batches.values(), strict=True)]
    rates = [
        f"{name} {statistics.median(b.tokens / b.seconds for b in made):.0f} tokens/s"
        for name, made in batches.items()
    ]
    print(
        f"\nEngine: {statistics.median(ratios):.2f}x the speed of TRL's loop "
        f"({min(ratios):.2f}x to {max(ratios):.2f}x in {rounds} rounds; {', '.join(rates)}; "
        f"{threads} thread{'s' * (threads > 1)}, lab policy, MuSiQue-World, "
        f"{PROBLEMS} x {SAMPLES}, temperature 1)"
    )


if __name__ == "__main__":
    main()
