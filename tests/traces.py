"""Builders of traces for tests of hypotheses and of the reader."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatline.rollout.record import Author
from flatline.trace import Trace

P, M, T, X = Author.PROMPT, Author.MODEL, Author.TOOL, Author.TEMPLATE
PIECE = (M, M, M, M, X, X, T, T, T, X, X, M, M, M)
"""Authors of a completion with one tool call: two turns of the model."""
VOCABULARY = [{"id": i, "text": f" w{i}"} for i in range(100)]
SETTINGS: dict[str, Any] = {
    "num_generations": 8,
    "beta": 0.04,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "num_iterations": 1,
    "epsilon": 0.2,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "max_steps": 10,
    "max_completion_length": 64,
    "mask_truncated_completions": False,
    "per_device_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "world_size": 1,
    "shuffle_dataset": True,
    "seed": 0,
    "disable_dropout": False,
    "bf16": False,
    "gradient_checkpointing": False,
    "lora": None,
    "engine": "flatline",
    "dataset_size": 1000,
    "prompts_per_step": 8,
    "correct": "exact_match",
}


def run_facts(**settings: Any) -> dict[str, Any]:
    """A `run.json` whose settings are those of a healthy run, with these changed."""
    return {
        "schema": 1,
        "flatline": "0.1.0",
        "source": "attach",
        "versions": {"python": "3.11", "trl": "1.16.0"},
        "seed": 0,
        "fault": None,
        "settings": {**SETTINGS, **settings},
    }


def rollout_rows(
    rewards_by_group: Sequence[Sequence[float]], *, step: int = 1, **columns: Any
) -> list[dict[str, Any]]:
    """One step's rollouts. A column is one value for all, or a sequence with one per rollout."""
    rows: list[dict[str, Any]] = []
    for group, rewards in enumerate(rewards_by_group):
        centred = np.asarray(rewards, dtype=float) - np.mean(rewards)
        spread = np.std(rewards, ddof=1) if len(rewards) > 1 else 0.0
        for reward, advantage in zip(rewards, centred / (spread + 1e-4), strict=True):
            row = {"step": step, "rank": 0, "rollout": len(rows), "group": group}
            row |= {"prompt_id": f"p{step}-{group}", "reward": reward, "advantage": advantage}
            rows.append(row)
    for name, value in columns.items():
        shared = isinstance(value, str | Mapping) or not isinstance(value, Sequence | np.ndarray)
        for index, row in enumerate(rows):
            row[name] = value if shared else value[index]
    return rows


def trace_of(
    rewards_by_group: Sequence[Sequence[float]],
    *,
    step: int = 1,
    run: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Trace:
    """A trace of one step that has rollouts and nothing else."""
    rows = rollout_rows(rewards_by_group, step=step, **columns)
    return Trace.from_rows(run=run or run_facts(), rollouts=rows)


def healthy_rows(
    *, steps: int = 10, prompts: int = 8, generations: int = 8, seed: int = 0, gain: float = 0.3
) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables of a run that learns: change one thing and build the trace."""
    rng = np.random.default_rng(seed)
    tables: dict[str, list[dict[str, Any]]] = {
        "steps": [{"step": 0, "heldout_reward": 0.4}],
        "rollouts": [],
        "tokens": [],
        "weights": [],
        "vocabulary": VOCABULARY,
    }
    for step in range(1, steps + 1):
        chance = 0.4 + gain * step / steps
        solved = rng.beta(4 * chance, 4 * (1 - chance), size=prompts)
        right = rng.random((prompts, generations)) < solved[:, None]
        tidy = rng.random(right.shape) < 0.9
        rollouts = _rollouts(rng, step, right, tidy)
        rewards = 0.9 * right + 0.1 * tidy
        tokens = [_tokens(rng, row) for row in rollouts]
        tables["rollouts"] += rollouts
        tables["tokens"] += tokens
        tables["steps"].append(_step(rng, step, rewards, tokens))
        tables["weights"] += _weights(rng, step)
    tables["steps"][-1]["heldout_reward"] = 0.4 + gain
    return tables


def healthy_trace(
    *,
    steps: int = 10,
    prompts: int = 8,
    generations: int = 8,
    seed: int = 0,
    gain: float = 0.3,
    **settings: Any,
) -> Trace:
    """A plausible full trace of a run that learns; `settings` change those of `run.json`."""
    rows = healthy_rows(steps=steps, prompts=prompts, generations=generations, seed=seed, gain=gain)
    shape = {"num_generations": generations, "prompts_per_step": prompts, "max_steps": steps}
    return Trace.from_rows(run=run_facts(**{**shape, **settings}), **rows)


def _rollouts(rng: Any, step: int, right: np.ndarray, tidy: np.ndarray) -> list[dict[str, Any]]:
    correct = right.ravel().astype(float)
    cut = rng.random(correct.size) < 0.03
    return rollout_rows(
        (0.9 * right + 0.1 * tidy).tolist(),
        step=step,
        hops=[2 + index % 3 for index in range(correct.size)],
        parts=[
            {"exact_match": float(answer), "format": float(form)}
            for answer, form in zip(right.ravel(), tidy.ravel(), strict=True)
        ],
        weight_version=step - 1,
        finish=["turn_length" if c else "answered" for c in cut],
        turns=2,
        tool_calls=1,
        tool_errors=0,
        malformed_calls=0,
        malformed_answers=0,
        supporting=2,
        supporting_seen=2,
        documents_dropped=0,
        prompt_tokens=6,
        completion_tokens=len(PIECE),
        model_tokens=PIECE.count(M),
        trained_tokens=PIECE.count(M),
        as_sampled=1,
        prompt="Who wrote it?",
        completion=[
            f"{'' if form else 'well '}<answer>{'right' if answer else 'wrong'}</answer>"
            for answer, form in zip(correct, tidy.ravel(), strict=True)
        ],
        gold="right",
    )


def _tokens(rng: Any, rollout: Mapping[str, Any]) -> dict[str, Any]:
    model = np.array([author is M for author in PIECE])
    sampler = np.where(model, -rng.exponential(0.5, len(PIECE)), 0.0).astype(np.float32)
    trainer = sampler + np.where(model, rng.normal(0, 2e-7, len(PIECE)), 0.0)
    others = np.where(model, trainer, -rng.exponential(2.0, len(PIECE))).astype(np.float32)
    return {
        "step": rollout["step"],
        "rank": 0,
        "rollout": rollout["rollout"],
        "prompt_ids": rng.integers(0, 100, 6),
        "prompt_attended": np.ones(6, np.uint8),
        "ids": rng.integers(0, 100, len(PIECE)),
        "author": np.array(PIECE, np.uint8),
        "trained": model.astype(np.uint8),
        "attended": np.ones(len(PIECE), np.uint8),
        "sampler": sampler,
        "trainer": others,
        "old": others,
        # Before the first update the policy is its reference.
        "reference": others + rng.normal(0, 0.02 * (rollout["step"] > 1), len(PIECE)),
    }


def _step(
    rng: Any, step: int, rewards: np.ndarray, tokens: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    deviations = rewards.std(axis=1, ddof=1)
    gaps = np.concatenate(
        [np.abs(row["sampler"] - row["trainer"])[row["trained"] == 1] for row in tokens]
    )
    return {
        "step": step,
        "time": 1.8e9 + step,
        "seconds": 1.0,
        "seconds_sampling": 0.6,
        "seconds_scoring": 0.1,
        "seconds_backward": 0.3,
        "reward": rewards.mean(),
        "reward_std_within": deviations.mean(),
        "zero_std_share": (deviations == 0).mean(),
        "advantage_max": 2.5,
        "kl": 1e-3 * (step - 1),
        "kl_max": 0.05 * (step > 1),
        "ratio_max": 1e-6,
        "logprob_gap": gaps.mean(),
        "logprob_gap_max": gaps.max(),
        "clip_share": 0.0,
        "entropy": 1.0 - 0.01 * step,
        "kl_least": 0.9e-3 * (step - 1),
        "kl_most": 1.1e-3 * (step - 1),
        "clip_least": 0.0,
        "clip_most": 0.0,
        "entropy_least": 0.9 - 0.01 * step,
        "entropy_most": 1.1 - 0.01 * step,
        "loss": rng.normal(0, 0.01),
        "grad_norm": rng.uniform(0.3, 0.8),
        "learning_rate": SETTINGS["learning_rate"],
        "completion_length": float(len(PIECE)),
        "truncated_share": 0.03,
        "heldout_rows": 0.0,
        "metrics": {"reward": rewards.mean(), "frac_reward_zero_std": (deviations == 0).mean()},
    }


def _weights(rng: Any, step: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "name": f"layers.{layer}.weight",
            "size": 4096,
            "dtype": "float32",
            "norm": 10.0 + 1e-3 * step,
            "grad_norm": rng.uniform(0.1, 0.4),
            "update_norm": rng.uniform(2e-3, 4e-3),
            "changed_share": 1.0,
            "sampled": 4096,
            "in_optimizer": 1,
            "travel": 3e-3 * step,
            "between": None if step == 1 else 0.0,
        }
        for layer in range(2)
    ]


def blind_rows():
    """The trainer does not see prompts: H09."""
    rows = healthy_rows()
    for row in rows["tokens"]:
        row["prompt_attended"] = np.zeros(6, np.uint8)
        row["trainer"] = row["trainer"] - 2 * (row["trained"] == 1)
    return rows
