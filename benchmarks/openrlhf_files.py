"""The log that OpenRLHF 0.11.2 itself writes, in a healthy run on a CPU.

    pip install --target FOLDER --no-deps openrlhf==0.11.2 tensorboard tensorboard-data-server \
        absl-py grpcio markdown werkzeug protobuf
    python benchmarks/openrlhf_files.py --path FOLDER --keep tests/fixtures/openrlhf

OpenRLHF's own code that runs: `PPOTrainer.fit` with `train_step` and `evaluate`,
`SamplesGenerator`, `RemoteExperienceMaker`, `PolicyModelActor` and `ActorPPOTrainer.ppo_train` with
`PolicyLoss` (they measure what is logged), and `TensorboardLogger`. A small torch model stands
where DeepSpeed and vLLM are, both of which are empty modules here, and Ray's calls are made in
this process.
"""

import argparse
import copy
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import ray
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

sys.path.append(str(Path(__file__).parent))

from framework_lab import EVENTS, chances_of, gold, prompts, reward, sampled, text, without
from tinker_api import END, GROUP, PROMPTS, make_model

STEPS, EVERY, RATE = 12, 6, 3e-3


def in_this_process() -> None:
    """Ray's calls, at once: what is put or asked for is the thing itself."""
    ray.remote = lambda *given, **_: given[0] if given else lambda one: one
    ray.get = ray.put = lambda one: one
    ray.wait = lambda refs, **_: (refs[:1], refs[1:])
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda: None


class Rows(list):
    """A data loader of OpenRLHF: sources, prompts, labels and images."""

    def state_dict(self) -> dict:
        return {}


def rows(draw: random.Random, count: int) -> Rows:
    asked = prompts(draw, count)
    return Rows((["letters"], [text(one)], [gold(one)], [None]) for one in asked)


class Actor(torch.nn.Module):
    """Where OpenRLHF's model in DeepSpeed's engine is."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, sequences, action_mask, attention_mask, return_output=False, **_):
        logps, entropy = chances_of(self.model, sequences, attention_mask)
        logps = logps * action_mask.float()
        return (logps, SimpleNamespace(entropy=entropy)) if return_output else logps


class Strategy:
    """Where DeepSpeed is: one process and one device."""

    ring_attn_group, accumulated_gradient = None, 1

    def __init__(self, args) -> None:
        self.args = args

    def is_rank_0(self) -> bool:
        return True

    def all_reduce(self, values):
        return values

    def backward(self, loss, actor, optimizer) -> None:
        loss.backward()

    def optimizer_step(self, optimizer, actor, scheduler, name="model") -> None:
        self.norm = float(torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    def get_grad_norm(self, actor) -> float:
        return self.norm


class Group:
    """Where a group of Ray actors is."""

    def __init__(self, actor) -> None:
        self.actor = actor

    def async_run_method(self, method_name, **given):
        return [getattr(self.actor, method_name)(**given)]

    def async_run_method_batch(self, method_name, **given):
        sizes = {len(values) for values in given.values()}
        (size,) = sizes
        method = getattr(self.actor, method_name)
        each = [{name: values[at] for name, values in given.items()} for at in range(size)]
        return [[method(**one) for one in each]]


class Engine:
    """Where vLLM is: samples, and pays for a repeated letter."""

    def __init__(self, model) -> None:
        self.model = model
        self.generate_responses = SimpleNamespace(remote=self.responses)
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)

    def responses(self, prompt, label, hf_tokenizer, num_samples, **_):
        ids = hf_tokenizer.convert_tokens_to_ids(prompt.split())
        found = []
        for own, logps in sampled(self.model, [ids] * num_samples):
            paid = reward(text(own), label)
            found.append(
                {
                    "prompt": prompt,
                    "label": label,
                    "observation_tokens": ids + own,
                    "action_ranges": [(len(ids), len(ids) + len(own))],
                    "rollout_log_probs": [0.0] * len(ids) + logps,
                    "truncated": own[-1] != END,
                    "reward": paid,
                    "scores": paid,
                }
            )
        return found


def settings(folder: Path):
    """What is asked of the command line, in OpenRLHF's groups."""
    space = SimpleNamespace
    correction = {"level": "token", "mode": "clip", "gating": "ratio", "threshold": [0.5, 5.0]}
    return space(
        actor=space(
            eps_clip_low_high=[0.2, 0.2],
            dual_clip=None,
            loss_agg_mode="token-mean",
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
            entropy_coef=0.0,
            num_nodes=1,
            num_gpus_per_node=1,
        ),
        algo=space(
            advantage=space(
                estimator="group_norm",
                gamma=1.0,
                lambd=1.0,
                no_std_norm=False,
                **{f"is_correction_{name}": value for name, value in correction.items()},
            ),
            kl=space(
                target=None,
                init_coef=0.001,
                use_loss=True,
                estimator="k3",
                horizon=10000,
                unbiased_gradient=False,
            ),
            dynamic_filtering_enable=False,
        ),
        ckpt=space(
            path=str(folder), load_enable=False, save_steps=float("inf"), best_metric_key=""
        ),
        critic=space(freezing_steps=-1),
        data=space(max_len=64),
        ds=space(
            ring_attn_size=1, tensor_parallel_size=1, packing_samples=False, enable_sleep=False
        ),
        eval=space(steps=EVERY, temperature=1.0, n_samples_per_prompt=4),
        logger=space(
            wandb=space(key=None, run_name="run"), tensorboard_dir=str(folder), logging_steps=1
        ),
        reward=space(
            clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None
        ),
        rollout=space(
            batch_size=PROMPTS, n_samples_per_prompt=GROUP, micro_batch_size=PROMPTS * GROUP
        ),
        train=space(
            max_epochs=1,
            num_episodes=1,
            batch_size=PROMPTS * GROUP,
            dynamic_batch_enable=False,
            colocate_all=True,
            colocate_actor_ref=False,
            async_enable=False,
        ),
        vllm=space(enable_sleep=False, sync_backend="nccl"),
    )


def trainer_of(model, path: Path, folder: Path):
    """OpenRLHF's trainer with its policy in this process."""
    import openrlhf.trainer.ppo_trainer as ppo
    import openrlhf.trainer.ray.ppo_actor as ray_actor

    ray_actor.torch_dist_barrier_and_cuda_sync = lambda: None
    strategy, tokenizer = Strategy(settings(folder)), AutoTokenizer.from_pretrained(path)
    policy = ray_actor.PolicyModelActor.__new__(ray_actor.PolicyModelActor)
    policy.strategy, policy.actor = strategy, Actor(model)
    policy.empty_cache = lambda: None
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    policy.trainer = ray_actor.ActorPPOTrainer(
        strategy,
        policy.actor,
        None,
        optimizer,
        torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
        micro_train_batch_size=PROMPTS * GROUP,
        tokenizer=tokenizer,
        dataloader_pin_memory=False,
    )
    policy.trainer.replay_buffer.target_device = torch.device("cpu")
    torch.cuda.current_device = lambda: "cpu"
    reference = copy.copy(policy)
    reference.actor = Actor(copy.deepcopy(model))
    trainer = ppo.PPOTrainer.__new__(ppo.PPOTrainer)
    groups = (Group(policy), None, None, Group(reference))
    ppo.BasePPOTrainer.__init__(trainer, strategy, *groups, None, tokenizer)
    trainer.prompts_dataloader = rows(random.Random(0), PROMPTS * STEPS)
    trainer.eval_dataloader = rows(random.Random(7), PROMPTS)
    trainer.generate_kwargs = {"max_len": 64, "n_samples_per_prompt": GROUP}
    trainer.save_best_checkpoint = lambda *_: None
    loaders = (trainer.prompts_dataloader, trainer.eval_dataloader)
    trainer.samples_generator = ppo.SamplesGenerator(strategy, *loaders, tokenizer, [Engine(model)])
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True, help="where openrlhf is, `:` between folders")
    parser.add_argument("--keep", type=Path, required=True)
    asked = parser.parse_args()
    sys.path += asked.path.split(os.pathsep)
    without(
        "deepspeed", "vllm", "flash_attn", "optree", "PIL", "pylatexenc", "aiohttp", "torchdata"
    )
    in_this_process()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        path, logs = make_model(Path(name) / "model"), Path(name) / "logs"
        trainer_of(LlamaForCausalLM.from_pretrained(path), path, logs).fit()
        (log,) = (logs / "run").iterdir()
        asked.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, asked.keep / EVENTS)


if __name__ == "__main__":
    main()
