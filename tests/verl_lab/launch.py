"""verl's own `main_ppo` on the lab policy, with the settings of a small GRPO run."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "build" / "verl"
"""Where `make verl` puts it."""
PROMPTS, GROUP, LONGEST = 8, 4, 64
FLOAT32 = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"


def settings(folder: Path, steps: int) -> dict[str, object]:
    """What a user would write behind `python -m verl.trainer.main_ppo`."""
    return {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "train.parquet",
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 256,
        "data.max_response_length": LONGEST,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "data.seed": 7,
        "actor_rollout_ref.model.path": checkpoint_folder(),
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision": FLOAT32,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.optim.lr": 1e-4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.01,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.ref.fsdp_config.dtype": "float32",
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision": FLOAT32,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.rollout.name": "lab",
        "actor_rollout_ref.rollout.n": GROUP,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": ROOT / "tests" / "verl_lab" / "reward.py",
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.logger": '["console","file"]',
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.project_name": "lab",
        "trainer.experiment_name": folder.name,
        "trainer.total_training_steps": steps,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 8,
        "+ray_kwargs.ray_init.num_gpus": 1,
        "+ray_kwargs.ray_init.include_dashboard": False,
    }


FAULTS: dict[str, dict[str, object]] = {
    "": {},
    "mask": {"actor_rollout_ref.rollout.agent.default_agent_loop": "lab_mask"},
    "stale": {},
    "temperature": {},
}
"""What is planted, and what else has to be set for it; `server.py` and `loops.py` do it."""
NAMED = {"": set(), "mask": {"H02"}, "stale": {"H06", "H17"}, "temperature": {"H20", "H21"}}
"""One of these must come first."""


def environment(folder: Path, modules: Sequence[str], packages: Path) -> dict[str, str]:
    """Of every process of the run; `packages` is where verl was installed."""
    found = [str(ROOT), str(ROOT / "src"), str(packages)]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(found),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": ",".join(["tests.verl_lab.plugin", *modules]),
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # 15 by default: workers starve where anything else computes
        "HF_HUB_OFFLINE": "1",
    }


def write_rows(folder: Path, count: int = 64) -> None:
    """The lab's word problems as verl's datasets are laid out."""
    task = make_task("gsm8k")
    rows = [
        {
            "prompt": task.messages(problem),
            "data_source": "lab",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": at},
        }
        for at, problem in enumerate(task.load(f"lab,,train[:{count}]", split="train"))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")


def launch(
    folder: Path,
    *,
    steps: int = 12,
    fault: str = "",
    packages: Path = PACKAGES,
    timeout: float = 900,
) -> Path:
    """Run it, recorded; the folder of the trace."""
    write_rows(folder)
    asked = settings(folder, steps) | FAULTS[fault]
    told = {"VERL_LAB_FAULT": fault, "FLATLINE_RUN": str(folder / "trace")}
    command = ["-m", "verl.trainer.main_ppo", *(f"{name}={value}" for name, value in asked.items())]
    _run(command, environment(folder, ["flatline.verl"], packages) | told, folder, timeout)
    return folder / "trace"


def look(
    folder: Path, *, fault: str = "", packages: Path = PACKAGES, timeout: float = 600
) -> dict[str, Any]:
    """A checkup of one of verl's engines, in a process of its own (`engine.py`)."""
    folder.mkdir(parents=True, exist_ok=True)
    env = environment(folder, [], packages) | {"VERL_LAB_FAULT": fault}
    printed = _run(["-m", "tests.verl_lab.engine", str(folder)], env, folder, timeout)
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


def _run(command: Sequence[str], env: Mapping[str, str], folder: Path, timeout: float) -> str:
    """What it printed; all of it is kept in the folder."""
    done = subprocess.run(
        [sys.executable, *command],
        env=dict(env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    (folder / "printed.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"verl ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout
