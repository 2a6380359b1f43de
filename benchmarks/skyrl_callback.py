"""SkyRL's own training loop on a CPU, recorded by its callback: healthy and broken.

    python benchmarks/skyrl_callback.py --skyrl-path FOLDER  # as in docs/other-trainers.md

With `--fixture FILE`, two steps as SkyRL hands them to its callbacks are written instead, for
`tests/test_skyrl_recording.py`. FOLDER holds `skyrl` 0.3.0 with what its trainer imports, installed
apart from flatline. The loop, the batches, advantages and callbacks are SkyRL's
(`RayPPOTrainer.train`); a small torch model stands where vLLM samples and where its Ray workers
score and step. The task is that of `tinker_api.py`.
"""

import argparse
import asyncio
import copy
import json
import os
import random
import sys
import tempfile
import typing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import typing_extensions
from transformers import AutoTokenizer, LlamaForCausalLM

sys.path.append(str(Path(__file__).parent))

from tinker_api import END, GROUP, LONGEST, PROMPTS, _prompt, alarms, make_model

DEFECTS = ("", "mask", "stale", "temperature")


class Sampler:
    """Where vLLM stands: samples, and pays for a repeated letter."""

    def __init__(self, model, defect: str) -> None:
        self.model, self.defect = copy.deepcopy(model), defect

    async def generate(self, asked):
        temperature = 1.7 if self.defect == "temperature" else 1.0
        prompts = [row[0]["content"] for row in asked["prompts"]]
        ids = torch.tensor(prompts)
        logps = []
        with torch.no_grad():
            for _ in range(LONGEST):
                chances = (self.model(input_ids=ids).logits[:, -1] / temperature).log_softmax(-1)
                token = torch.multinomial(chances.exp(), 1)
                logps.append(chances.gather(1, token))
                ids = torch.cat([ids, token], dim=1)
        rows = list(
            zip(ids[:, len(prompts[0]) :].tolist(), torch.cat(logps, 1).tolist(), strict=True)
        )
        sizes = [row.index(END) + 1 if END in row else len(row) for row, _ in rows]
        responses = [row[:size] for (row, _), size in zip(rows, sizes, strict=True)]
        pairs = list(zip(prompts, responses, strict=True))
        return {
            "prompt_token_ids": prompts,
            "response_ids": responses,
            "rewards": [float(own[0] == prompt[-1]) for prompt, own in pairs],
            "loss_masks": [self.mask(len(own)) for own in responses],
            "stop_reasons": ["stop" if own[-1] == END else "length" for own in responses],
            "rollout_metrics": None,
            "rollout_logprobs": [row[1][:size] for row, size in zip(rows, sizes, strict=True)],
            "trajectory_ids": asked["trajectory_ids"],
        }

    def mask(self, size: int) -> list[int]:
        """Shifted by one where that is planted: the end carries no loss."""
        return [1] * (size - 1) + [0] if self.defect == "mask" and size > 1 else [1] * size


def trainer_of(model, defect: str, *, steps: int):
    """SkyRL's trainer, with a torch model where its workers are."""
    from skyrl.train.config.config import SkyRLTrainConfig
    from skyrl.train.trainer import RayPPOTrainer

    class OnCpu(RayPPOTrainer):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

        def init_weight_sync_state(self) -> None: ...

        def _execute_forward_pass(self, name, data, key, mini_batch_boundaries):
            with torch.no_grad():
                return self.logps(data, data.metadata["response_length"])

        def logps(self, data, size: int):
            ids, seen = data["sequences"], data["attention_mask"]
            places = (seen.cumsum(-1) - 1).clamp(min=0)
            out = model(input_ids=ids, attention_mask=seen, position_ids=places).logits
            logps = out[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
            return logps[:, -size:]

        def train_critic_and_policy(self, data):
            logps = self.logps(data, data["loss_mask"].shape[1])
            ratio = (logps - data["action_log_probs"]).exp()
            mask = data["loss_mask"]
            loss = -(ratio * data["advantages"] * mask).sum() / mask.sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return {"policy_loss": float(loss)}

    config = SkyRLTrainConfig()
    config.trainer.placement.colocate_all = False
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = PROMPTS
    config.trainer.policy.optimizer_config.lr = 3e-3
    config.trainer.eval_interval = config.trainer.ckpt_interval = -1
    config.trainer.resume_mode = "none"
    config.trainer.enable_ray_gpu_monitor = False
    config.generator.inference_engine.enable_ray_prometheus_stats = False
    config.trainer.max_training_steps = steps
    config.trainer.epochs, config.trainer.print_example_interval = 1, -1
    config.trainer.algorithm.use_kl_loss = False
    config.generator.n_samples_per_prompt = GROUP
    config.generator.sampling_params.temperature = 1.0
    tracker = SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)
    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    sampler = Sampler(model, defect)
    trainer = OnCpu(config, tracker, tokenizer, None, None, sampler)
    draw = random.Random(0)
    trainer.train_dataloader = [_rows(draw, step) for step in range(steps)]
    trainer.total_training_steps = steps

    async def renewed() -> None:
        if defect != "stale":
            sampler.model.load_state_dict(model.state_dict())

    trainer.dispatch = SimpleNamespace(
        save_weights_for_sampler=renewed, get_lcm_dp_size=lambda: 1, empty_cache=lambda *_: None
    )
    return trainer


def _rows(draw: random.Random, step: int) -> list[dict]:
    prompts = [[{"role": "user", "content": _prompt(draw)}] for _ in range(PROMPTS)]
    return [
        {"prompt": prompt, "env_class": None, "env_extras": {}, "uid": f"{step}-{at}"}
        for at, prompt in enumerate(prompts)
    ]


def run(model, defect: str, run_dir: Path, *, steps: int) -> list[float]:
    """One recorded run; the rewards of its steps."""
    import flatline
    import flatline.skyrl

    torch.manual_seed(0)
    trainer = trainer_of(copy.deepcopy(model), defect, steps=steps)
    trainer.add_callback(flatline.skyrl.Recording(run_dir))
    asyncio.run(trainer.train())
    return flatline.Trace.open(run_dir).steps["reward"].tolist()


def handed_over(model) -> dict:
    """Two steps as SkyRL gives them to `on_step_end`, and its settings."""
    steps = []

    class Keeping:
        def __getattr__(self, name):
            return lambda *_: None

        def on_step_end(self, trainer, told, control):
            tensors = {name: one for name, one in told.batch.items() if one is not None}
            steps.append(
                {
                    "global_step": told.global_step,
                    "batch": {name: _rounded(one) for name, one in tensors.items()},
                    "metadata": told.batch.metadata,
                    "metrics": told.metrics,
                    "all_metrics": dict(trainer.all_metrics),
                }
            )

    torch.manual_seed(0)
    trainer = trainer_of(copy.deepcopy(model), "", steps=2)
    trainer.add_callback(Keeping())
    asyncio.run(trainer.train())
    return {"config": _told(asdict(trainer.cfg)), "steps": steps}


def _told(config: dict) -> dict:
    """Settings without the folders of this machine."""
    trainer, generator = config["trainer"], config["generator"]
    kept = {name: trainer[name] for name in ("algorithm", "train_batch_size")}
    policy = {"optimizer_config": trainer["policy"]["optimizer_config"]}
    names = ("n_samples_per_prompt", "sampling_params")
    return {
        "trainer": {**kept, "policy": policy},
        "generator": {name: generator[name] for name in names},
    }


def _rounded(tensor) -> list:
    return (
        tensor.tolist()
        if not tensor.is_floating_point()
        else tensor.double().round(decimals=6).tolist()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--skyrl-path", required=True, help="where skyrl is, `:` between folders")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--fixture", type=Path)
    asked = parser.parse_args()
    sys.path += asked.skyrl_path.split(os.pathsep)
    typing.TypedDict = typing_extensions.TypedDict  # SkyRL wants Python 3.12 for this one name

    import flatline

    if not asked.fixture:
        print("| planted | reward, first to last 3 steps | diagnose |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = LlamaForCausalLM.from_pretrained(make_model(folder / "model"))
        if asked.fixture:
            asked.fixture.write_text(json.dumps(handed_over(model)))
            return
        for defect in DEFECTS:
            run_dir = folder / (defect or "healthy")
            rewards = run(model, defect, run_dir, steps=asked.steps)
            reward = f"{np.mean(rewards[:3]):.2f} to {np.mean(rewards[-3:]):.2f}"
            print(
                "|", defect or "nothing", "|", reward, "|", alarms(flatline.diagnose(run_dir)), "|"
            )


if __name__ == "__main__":
    main()
