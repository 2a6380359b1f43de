"""The log and the batches that NeMo-RL 0.7.0 itself writes, in a healthy run on a CPU.

    python benchmarks/nemo_rl_files.py --path FOLDER --keep tests/fixtures/nemo_rl

FOLDER holds `nemo_rl` of the tag v0.7.0 of NVIDIA-NeMo/RL (the package index has only an empty
one), torchdata, tensordict, omegaconf and `tensorboard` with what they need. NeMo-RL's own code
that runs: `grpo_train` with `run_multi_turn_rollout`, `validate`, the advantage estimator,
`ClippedPGLossFn` (it measures what is logged) and `Logger` with `log_batched_dict_as_jsonl` and
TensorBoard. A small torch model stands where its Ray workers and vLLM are, and the environment is
called in this process.
"""

import argparse
import copy
import os
import random
import shutil
import sys
import tempfile
import typing
from pathlib import Path
from types import SimpleNamespace

import torch
import typing_extensions
from transformers import AutoTokenizer, LlamaForCausalLM

sys.path.append(str(Path(__file__).parent))

from framework_lab import EVENTS, chances_of, gold, prompts, reward, sampled, text, without
from tinker_api import END, GROUP, LONGEST, PAD, PROMPTS, make_model

STEPS, EVERY, RATE = 12, 6, 3e-3
KEPT = (1, 2)
"""The steps whose batches are kept: 64 rollouts each."""


class Letters:
    """An environment of one turn; NeMo-RL calls `step.remote`."""

    def __init__(self) -> None:
        self.step = SimpleNamespace(remote=self.pay)
        self.results: list = []

    def pay(self, messages, told) -> int:
        from nemo_rl.environments.interfaces import EnvironmentReturn

        said = [one[-1]["content"] for one in messages]
        rewards = [reward(a, one["answer"]) for a, one in zip(said, told, strict=True)]
        judged = [{"role": "environment", "content": "x" if paid else "y"} for paid in rewards]
        done, none = torch.ones(len(said)), [None] * len(said)
        self.results.append(
            EnvironmentReturn(judged, told, none, torch.tensor(rewards), done, none)
        )
        return len(self.results) - 1

    def global_post_process_and_metrics(self, batch):
        return batch, {}


class Policy:
    """Where NeMo-RL's workers are, and vLLM."""

    def __init__(self, model) -> None:
        self.model, self.reference = model, copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def __getattr__(self, name):
        """What moves weights between devices does nothing."""
        if name in ("requires_kv_scale_sync", "snapshot_step_metrics", "get_step_metrics"):
            raise AttributeError(name)
        return lambda *_, **__: {}

    def generate(self, data, greedy=False):
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict

        asked = data["input_ids"].tolist()
        answers = sampled(self.model, asked)
        sizes = torch.tensor([len(own) for own, _ in answers])
        start = len(asked[0])
        ids = torch.full((len(asked), start + LONGEST), PAD)
        logps = torch.zeros(ids.shape)
        for row, (prompt, (own, values)) in enumerate(zip(asked, answers, strict=True)):
            ids[row, : start + len(own)] = torch.tensor(prompt + own)
            logps[row, start : start + len(own)] = torch.tensor(values)
        return BatchedDataDict(
            output_ids=ids,
            logprobs=logps,
            generation_lengths=sizes,
            unpadded_sequence_lengths=sizes + start,
            truncated=torch.tensor([own[-1] != END for own, _ in answers]),
        )

    @torch.no_grad()
    def get_logprobs(self, data, timer=None):
        return {"logprobs": _with_first(chances_of(self.model, data["input_ids"])[0])}

    @torch.no_grad()
    def get_reference_policy_logprobs(self, data, timer=None):
        found = _with_first(chances_of(self.reference, data["input_ids"])[0])
        return {"reference_logprobs": found}

    def train(self, data, loss_fn, timer=None):
        sequences = data["sample_mask"].sum()
        tokens = (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum()
        logps, _ = chances_of(self.model, data["input_ids"])
        loss, measured = loss_fn(logps, data, sequences, tokens)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        measured |= {"lr": RATE, "global_valid_seqs": sequences, "global_valid_toks": tokens}
        found = {name: [float(value)] for name, value in measured.items()}
        return {"loss": loss.detach()[None], "grad_norm": norm[None], "all_mb_metrics": found}


def _with_first(logps):
    """NeMo-RL gives the first token a log-prob of 0."""
    return torch.cat([torch.zeros(len(logps), 1), logps], dim=1)


def batch_of(asked: list[list[int]]):
    """A batch as NeMo-RL's data loader gives it."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    def message(prompt):
        return {"role": "user", "content": text(prompt), "token_ids": torch.tensor(prompt)}

    return BatchedDataDict(
        message_log=[[message(one)] for one in asked],
        length=torch.tensor([len(one) for one in asked]),
        loss_multiplier=torch.ones(len(asked)),
        extra_env_info=[{"answer": gold(one)} for one in asked],
        task_name=["letters"] * len(asked),
        idx=list(range(len(asked))),
    )


def settings(folder: Path):
    """What `grpo_train` asks of its configuration."""
    from nemo_rl.algorithms.loss import ClippedPGLossConfig

    grpo = {
        "num_prompts_per_step": PROMPTS,
        "num_generations_per_prompt": GROUP,
        "max_num_epochs": 1,
        "max_num_steps": STEPS,
        "max_rollout_turns": 1,
        "normalize_rewards": False,
        "use_leave_one_out_baseline": False,
        "val_period": EVERY,
        "val_batch_size": PROMPTS,
        "val_at_start": False,
        "val_at_end": False,
        "max_val_samples": PROMPTS,
        "overlong_filtering": False,
        "use_dynamic_sampling": False,
        "reward_shaping": {"enabled": False},
        "reward_scaling": {"enabled": False},
        "seq_logprob_error_threshold": None,
    }
    backends = ("wandb", "swanlab", "mlflow")
    logger = {
        "log_dir": str(folder),
        "tensorboard_enabled": True,
        "tensorboard": {},
        "monitor_gpus": False,
        "num_val_samples_to_print": 0,
        **{f"{name}_enabled": False for name in backends},
    }
    return SimpleNamespace(
        grpo=grpo,
        loss_fn=ClippedPGLossConfig(),
        policy={
            "generation": {"colocated": {"enabled": True}, "backend": "vllm", "vllm_cfg": {}},
            "max_total_sequence_length": 32,
            "make_sequence_length_divisible_by": 1,
        },
        data={"use_multiple_dataloader": False},
        env={},
        cluster={"num_nodes": 1, "gpus_per_node": 1},
        checkpointing={
            "enabled": False,
            "checkpoint_must_save_by": None,
            "save_period": 1000,
            "metric_name": None,
        },
        logger=logger,
    )


def run(model_path: Path, folder: Path) -> None:
    """One run; its log and its batches are left in the folder."""
    import nemo_rl.algorithms.grpo as grpo
    import nemo_rl.experience.rollouts as rollouts
    import nemo_rl.utils.memory_tracker as memory
    from nemo_rl.utils.logger import Logger

    torch.manual_seed(0)
    config, draw, letters = settings(folder), random.Random(0), Letters()
    policy = Policy(LlamaForCausalLM.from_pretrained(model_path))
    rollouts.ray = SimpleNamespace(get=lambda refs: [letters.results[at] for at in refs])
    memory.memory_summary = lambda **_: ""
    grpo.refit_policy_generation = lambda *_, **__: None
    environments = {"letters": letters}
    grpo.grpo_train(
        policy,
        policy,
        [batch_of(prompts(draw)) for _ in range(STEPS)],
        [batch_of(prompts(random.Random(7)))],
        AutoTokenizer.from_pretrained(model_path),
        grpo.ClippedPGLossFn(config.loss_fn),
        environments,
        environments,
        Logger(config.logger),
        None,
        grpo._default_grpo_save_state(),
        config,
    )


def keep(folder: Path, kept: Path) -> None:
    """The log, and the first batches."""
    (log,) = (folder / "tensorboard").iterdir()
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(log, kept / EVENTS)
    for step in KEPT:
        shutil.copy(folder / f"train_data_step{step}.jsonl", kept)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True, help="where nemo_rl is, `:` between folders")
    parser.add_argument("--keep", type=Path, required=True)
    asked = parser.parse_args()
    sys.path += asked.path.split(os.pathsep)
    typing.TypedDict = typing_extensions.TypedDict  # pydantic wants this before Python 3.12
    without("mlflow", "swanlab", "wandb", "PIL", "zmq", "pynvml", "fastapi")
    without("matplotlib", "soundfile")
    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name) / "model")
        sys.modules["transformers"].__version__ = "5.11.0"  # NeMo-RL refuses a later one
        run(model, Path(name) / "logs")
        keep(Path(name) / "logs", asked.keep)


if __name__ == "__main__":
    main()
