"""Small logs and dumps in the exact formats of other trainers, as their own code writes them.

Every function writes one run into a folder and returns what a user would give to `open_log`. The
rollouts are the same in all of them: what differs is what a format keeps.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

STEPS, PROMPTS, GROUP = 8, 4, 4
PROMPT_TOKENS, ANSWER_TOKENS, TOOL_TOKENS = 6, 5, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One rollout: a prompt, a call, what the tool said, an answer."""

    step: int
    prompt: int
    number: int
    """In its group."""
    reward: float
    advantage: float
    ids: list[int]
    """Prompt, call, tool output, answer."""
    sampled: list[bool]
    """What the model wrote."""
    logprobs: list[float]
    """Of the sampler, 0 where it sampled nothing."""

    @property
    def question(self) -> str:
        return f"What is {self.prompt} + {self.step}?"

    @property
    def answer(self) -> str:
        return str(self.prompt + self.step)

    @property
    def said(self) -> str:
        return self.answer if self.reward else f"{self.prompt - self.step - 1}"

    @property
    def trainer(self) -> list[float]:
        """The trainer's own log-probs: those of the sampler, to bf16 rounding."""
        return [round(value * 1.001, 6) for value in self.logprobs]


def played(steps: int = STEPS) -> Iterator[Played]:
    """A healthy run of a few steps: rewards differ inside groups."""
    rng = np.random.default_rng(0)
    length = PROMPT_TOKENS + ANSWER_TOKENS + TOOL_TOKENS + ANSWER_TOKENS
    mine = [False] * length
    for start in (PROMPT_TOKENS, length - ANSWER_TOKENS):
        mine[start : start + ANSWER_TOKENS] = [True] * ANSWER_TOKENS
    for step in range(1, steps + 1):
        for prompt in range(PROMPTS):
            rewards = rng.permutation([1.0, 1.0, 0.0, 0.0])
            asked = rng.integers(10, 99, PROMPT_TOKENS)
            for number, reward in enumerate(rewards):
                written = rng.integers(100, 999, length - PROMPT_TOKENS)
                values = -rng.exponential(0.5, length)
                yield Played(
                    step=step,
                    prompt=prompt,
                    number=number,
                    reward=float(reward),
                    advantage=float(reward) - 0.5,
                    ids=[*asked.tolist(), *written.tolist()],
                    sampled=mine,
                    logprobs=[float(v) if on else 0.0 for v, on in zip(values, mine, strict=True)],
                )


def by_step(steps: int = STEPS) -> dict[int, list[Played]]:
    found: dict[int, list[Played]] = {}
    for one in played(steps):
        found.setdefault(one.step, []).append(one)
    return found


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seal(path: Path) -> None:
    """A chunk as prime-rl leaves it: frames of zstd and a table at the end that readers skip."""
    packed = pa.Codec("zstd").compress(path.read_bytes(), asbytes=True)
    table = b"\x5e\x2a\x4d\x18" + (9).to_bytes(4, "little") + bytes(9)
    path.with_name(path.name + ".zst").write_bytes(packed + table)
    path.unlink()


# --- rollouts ---


def verl_recorded(folder: Path, *, steps: int = STEPS) -> Path:
    """A recording of verl 0.9.1's own trainer; it has 12 steps."""
    return Path(__file__).parent / "fixtures" / "verl" / "trace"


def verl_rollouts(folder: Path, *, steps: int = STEPS) -> Path:
    """verl 0.9.1, `trainer.rollout_data_dir` of the v1 trainer."""
    for step, ones in by_step(steps).items():
        rows = [
            {
                "input": f"user\n{one.question}\nassistant\n",
                "output": f"{one.said}",
                "gts": one.answer,
                "score": one.reward,
                "step": step,
                "uid": f"8d1f-{one.prompt}_{one.number}_0",
            }
            for one in ones
        ]
        write_jsonl(folder / f"{step}.jsonl", rows)
    return folder


def nemo_rl_train_data(folder: Path, *, steps: int = STEPS) -> Path:
    """NeMo-RL, `train_data_stepN.jsonl` in the log folder: batches of one, padded on the right."""
    for step, ones in by_step(steps).items():
        write_jsonl(folder / f"train_data_step{step}.jsonl", map(nemo_rl_row, ones))
    return folder


def nemo_rl_row(one: Played) -> dict[str, Any]:
    pad = [0, 0]
    return {
        "content": [[one.question, "search(x)", "tool says", one.said]],
        "rewards": [one.reward],
        "input_lengths": [len(one.ids)],
        "token_ids": [one.ids + pad],
        "token_loss_mask": [[int(on) for on in one.sampled] + pad],
        "sample_loss_mask": [1.0],
        "advantages": [[one.advantage] * (len(one.ids) + 2)],
        "generation_logprobs": [[*one.logprobs, 0.0, 0.0]],
        "prev_logprobs": [[*one.trainer, 0.0, 0.0]],
        "idx": one.prompt * GROUP + one.number,
    }


def skyrl_evals(folder: Path, *, steps: int = STEPS) -> Path:
    """SkyRL 0.3.0, `trainer.dump_eval_results`."""
    for step, ones in by_step(steps).items():
        place = folder / "dumped_evals" / f"global_step_{step}_evals"
        rows = [
            {
                "input_prompt": one.question,
                "output_response": one.said,
                "score": [0.0, 0.0, one.reward],
                "stop_reason": "stop",
                "env_class": "gsm8k",
                "env_extras": {"reward_spec": {"method": "rule", "ground_truth": one.answer}},
                "data_source": "openai/gsm8k",
            }
            for one in ones
        ]
        write_jsonl(place / "openai_gsm8k.jsonl", rows)
        write_jsonl(place / "aggregated_results.jsonl", [{"eval/all/avg_score": 0.5}])
    return folder


def prime_rl_token_export(folder: Path, *, steps: int = STEPS) -> Path:
    """prime-rl, `trainer.enable_token_export`."""
    for step, ones in by_step(steps).items():
        path = folder / "token_exports" / f"step_{step}" / "rank_0.jsonl"
        write_jsonl(path, (prime_rl_token_row(one, at) for at, one in enumerate(ones)))
    return folder


def prime_rl_token_row(one: Played, at: int = 0) -> dict[str, Any]:
    length = len(one.ids)
    return {
        "schema_version": 1,
        "step": one.step,
        "export_step": one.step,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": at,
        "export_sequence_idx": at,
        "run_id": None,
        "env_name": "reverse-text",
        "token_ids": one.ids,
        "position_ids": list(range(length)),
        "loss_mask": one.sampled,
        "advantages": [one.advantage] * length,
        "losses": [{"rl": {"advantage": one.advantage, "mask": on}} for on in one.sampled],
        "rewards": [one.reward] * length,
        "inference_logprobs": one.logprobs,
        "trainer_logprobs": one.trainer,
        "entropy": [0.5] * length,
        "mismatch_kl": [0.0] * length,
        "log_importance_ratio": [0.0] * length,
        "importance_ratio": [1.0] * length,
        "prob_delta": [0.0] * length,
        "is_masked": [False] * length,
        "is_masked_high": [False] * length,
        "is_masked_low": [False] * length,
    }


def prime_rl_stream(folder: Path, *, annotated: bool = True, steps: int = STEPS) -> Path:
    """prime-rl's file monitor: episodes of verifiers, and what was found out later beside them."""
    traces = folder / "monitors" / "file" / "traces"
    ones = list(played(steps))
    half = len(ones) // 2
    write_jsonl(traces / "stream" / "00000.jsonl", map(episode, ones[:half]))
    seal(traces / "stream" / "00000.jsonl")
    held_out = [episode(one, work="eval") for one in ones if one.number == 0]
    write_jsonl(traces / "stream" / "00001.jsonl", [*map(episode, ones[half:]), *held_out])
    write_jsonl(traces / "stream.index.jsonl", [{"line": 1}])
    if annotated:
        write_jsonl(traces / "annotations" / "orchestrator" / "00000.jsonl", map(shipped, ones))
        write_jsonl(traces / "annotations" / "trainer" / "00000.jsonl", map(scored, ones))
        write_jsonl(traces / "annotations" / "trainer.index.jsonl", [{"trace_id": "x"}])
    return folder


def verifiers_eval(folder: Path) -> Path:
    """verifiers 0.4, `traces.jsonl` of an evaluation: no run, no tokens."""
    rows = [episode(one, work=None, tokens=False) for one in played() if one.step == 1]
    write_jsonl(folder / "traces.jsonl", rows)
    return folder


def trace_id(one: Played) -> str:
    return f"t{one.step}-{one.prompt}-{one.number}"


def episode(one: Played, *, work: str | None = "train", tokens: bool = True) -> dict[str, Any]:
    """`Episode.to_record()` of verifiers 0.4."""
    task = {
        "type": "Arithmetic",
        "data": {"idx": one.prompt, "prompt": one.question, "answer": one.answer},
        "key": f"key-{one.prompt}",
        "hash": f"hash-{one.prompt}",
    }
    record = {
        "id": f"e{trace_id(one)}{work}",
        "env": {"id": "arithmetic", "name": "arithmetic"},
        "task": task,
        "group": {"id": f"group-{one.step}-{one.prompt}"},
        "ok": True,
        "errors": [],
        "traces": [_trace(one, task, suffix="" if work == "train" else "-eval", tokens=tokens)],
    }
    if work is not None:
        span = {"start": one.step - 1, "end": one.step - 1}
        record["run"] = {
            "type": "train",
            "id": "run",
            "work": {"type": work, "step": one.step, "policy": span},
        }
    return record


def _trace(one: Played, task: dict[str, Any], *, suffix: str, tokens: bool) -> dict[str, Any]:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "search"}]}
    messages = [
        {"role": "user", "content": one.question},
        call,
        {"role": "tool", "content": "tool says", "tool_call_id": "1"},
        {"role": "assistant", "content": one.said},
    ]
    ends = [PROMPT_TOKENS, ANSWER_TOKENS, TOOL_TOKENS, ANSWER_TOKENS]
    nodes, start = [], 0
    for at, (message, length) in enumerate(zip(messages, ends, strict=True)):
        stop = start + length
        sampled = message["role"] == "assistant"
        node = {"parent": at - 1 if at else None, "message": message, "sampled": sampled}
        if tokens:
            node |= {
                "token_ids": one.ids[start:stop],
                "mask": one.sampled[start:stop],
                "logprobs": [round(v, 4) for v in one.logprobs[start:stop]] if sampled else [],
            }
        nodes.append({name: value for name, value in node.items() if value is not None})
        start = stop
    return {
        "version": 1,
        "id": trace_id(one) + suffix,
        "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": nodes,
        "calls": [{"node": 1, "finish_reason": "tool_calls"}, {"node": 3, "finish_reason": "stop"}],
        "rewards": {"correct_answer": {"score": one.reward, "weight": 1.0}},
        "metrics": {"num_turns": 2.0},
        "info": {},
        "is_completed": True,
        "ok": True,
        "stop_condition": "agent_completed",
        "errors": [],
    }


def shipped(one: Played) -> dict[str, Any]:
    """What prime-rl's orchestrator notes when a trace is sent to the trainer."""
    return {
        "version": 1,
        "trace_id": trace_id(one),
        "info": {
            "train": {"effective": True, "trained_at_step": one.step},
            "advantage": one.advantage,
        },
        "branches": [],
    }


def scored(one: Played) -> dict[str, Any]:
    """What prime-rl's trainer notes after a step: null where nothing is trained."""
    values = [v if on else None for v, on in zip(one.trainer, one.sampled, strict=True)]
    return {
        "version": 1,
        "trace_id": trace_id(one),
        "info": {},
        "branches": [{"index": 0, "trainer_logprobs": values, "entropies": values}],
    }


# --- metrics ---


def metrics(
    path: Path, names: Iterable[str], *, step: str, steps: int, wrap: str | None = None
) -> Path:
    """A log with these names at every step; with `wrap`, in an object of their own, as verl's."""
    rng = np.random.default_rng(1)
    rows = []
    for at in range(1, steps + 1):
        values = {name: float(rng.uniform(0.1, 0.2)) for name in names}
        rows.append({step: at, wrap: values} if wrap else {step: at, **values})
    return write_jsonl(path, rows)


TRL_METRICS = (
    *("loss", "grad_norm", "learning_rate", "num_tokens", "completions/mean_length", "epoch"),
    *("completions/min_length", "completions/max_length", "completions/clipped_ratio"),
    *("rewards/accuracy/mean", "rewards/accuracy/std", "reward", "reward_std", "kl", "entropy"),
    *("frac_reward_zero_std", "clip_ratio/region_mean", "clip_ratio/low_mean", "step_time"),
    *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
    "sampling/importance_sampling_ratio/mean",
)
"""TRL 1.16.0, `GRPOTrainer` with vLLM and beta above 0."""
VERL_METRICS = (
    *("actor/entropy", "actor/kl_loss", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl"),
    *("actor/grad_norm", "actor/lr", "critic/score/mean", "critic/rewards/mean"),
    *("critic/advantages/max", "response_length/mean", "response_length/clip_ratio"),
    *("timing_s/step", "timing_s/gen", "timing_s/update_actor", "training/global_step"),
    *("training/rollout_probs_diff_mean", "val-core/gsm8k/reward/mean@1"),
)
"""verl 0.9.1 with GRPO, the KL loss and a validation set."""
OPENRLHF_METRICS = (
    *("train/policy_loss", "train/actor_lr", "train/actor_grad_norm", "train/reward", "train/kl"),
    *("train/ppo_clip_ratio", "train/ppo_kl", "train/vllm_kl", "train/is_filter_ratio"),
    *("train/logprobs_diff", "train/response_clip_ratio", "train/response_length"),
    *("train/total_length", "train/truncated", "train/entropy_loss", "train/timing/generation"),
    *("train/timing/make_experience", "train/timing/ppo_train", "train/timing/broadcast"),
    *("train/timing/step_total", "train/group_reward_std", "eval/eval_letters_pass1"),
)
"""OpenRLHF 0.11.2 with `group_norm`, the KL loss, importance-sampling correction and an evaluation
set."""
NEMO_RL_METRICS = (
    *("train/loss", "train/reward", "train/grad_norm", "train/lr", "train/kl_penalty"),
    *("train/approx_entropy", "train/token_mult_prob_error", "train/gen_kl_error"),
    *("train/probs_ratio", "train/mean_gen_tokens_per_sample", "validation/accuracy"),
    *("timing/train/total_step_time", "timing/train/generation", "timing/train/policy_training"),
)
"""NeMo-RL 0.7.0 with GRPO, as its logger names them."""
SKYRL_METRICS = (
    *("policy/final_loss", "policy/policy_loss", "policy/policy_entropy", "policy/policy_kl"),
    *("policy/loss_metrics/clip_ratio", "policy/policy_lr", "policy/grad_norm"),
    *("policy/rollout_train_logprobs_abs_diff_mean", "policy/rollout_train_logprobs_abs_diff_max"),
    *("reward/avg_raw_reward", "reward/avg_pass_at_8", "reward/mean_positive_reward"),
    *("generate/avg_num_tokens", "generate/max_num_tokens", "loss/avg_final_rewards"),
    *("loss/avg_raw_advantages_abs", "timing/step", "timing/generate", "eval/all/avg_score"),
)
"""SkyRL 0.3.0 with GRPO, the KL loss and an evaluation set."""
PRIME_RL_METRICS = (
    *("agg/all/reward/mean", "agg/all/is_truncated/mean", "optim/lr", "optim/grad_norm"),
    *("loss/mean", "entropy/all/mean", "mismatch_kl/all/mean", "time/step", "time"),
    "completion_len/all/mean",
)
"""prime-rl's file monitor, `monitors/file/metrics.jsonl`."""
