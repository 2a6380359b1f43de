"""The log and the evaluations that SkyRL 0.3.0 itself writes, in a healthy run on a CPU.

    python benchmarks/skyrl_files.py --skyrl-path FOLDER --keep tests/fixtures/skyrl

FOLDER is that of `skyrl_callback.py`, with `tensorboard` and what it needs. SkyRL's own code that
runs: `RayPPOTrainer.train` with `train_critic_and_policy`, `PolicyWorkerBase.forward_backward` and
`optim_step` (they measure what is logged), `evaluate` with `dump_per_dataset_eval_results`, and
`Tracking` with TensorBoard. A small torch model stands where FSDP and vLLM are.
"""

import argparse
import asyncio
import copy
import os
import random
import shutil
import sys
import tempfile
import typing
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import typing_extensions
from transformers import LlamaForCausalLM

sys.path.append(str(Path(__file__).parent))

from framework_lab import EVENTS, chances_of, gold, prompts
from skyrl_callback import trainer_of
from tinker_api import PROMPTS, make_model

STEPS, EVERY = 12, 6
"""Of the run; an evaluation at every so many."""


class Alone:
    """Where FSDP is: one process, so nothing is reduced."""

    def all_reduce(self, values, op="mean", group=None):
        return dict(values)

    def backward(self, loss, model, optimizer) -> None:
        loss.backward()

    def optimizer_step(self, optimizer, model, scheduler, name="model"):
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return norm


class Wrapped(torch.nn.Module):
    """Where SkyRL's wrapper of a model is: log-probs of the response and the entropy of each."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, sequences, num_actions, attention_mask, **_):
        logps, entropy = chances_of(self.model, sequences, attention_mask)
        at_every = torch.nn.functional.pad(entropy, (0, 1))
        return logps[:, -num_actions:], {"entropy": at_every}


def worker_of(model, config):
    """SkyRL's worker of the policy, without a process of its own."""
    from skyrl.backends.skyrl_train.workers.worker import PolicyLossRegistry, PolicyWorkerBase

    worker = PolicyWorkerBase.__new__(PolicyWorkerBase)
    worker.cfg, worker.model, worker.strategy = config.trainer, Wrapped(model), Alone()
    worker.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    worker.scheduler = torch.optim.lr_scheduler.ConstantLR(worker.optimizer, factor=1.0)
    worker.mesh_rank = SimpleNamespace(dp_size=1)
    worker.device_mesh = SimpleNamespace(get_group=lambda _: None)
    worker.policy_loss_fn = PolicyLossRegistry.get(config.trainer.algorithm.policy_loss_type)
    return worker


def with_workers(trainer, model) -> None:
    """The trainer's own training step, with a worker in this process."""
    worker, dispatch = worker_of(model, trainer.cfg), trainer.dispatch
    reference = copy.deepcopy(model)
    dispatch.stage_data = lambda name, data, ends: [data[first:last] for first, last in ends]
    dispatch.forward_backward_from_staged = lambda name, data: worker.forward_backward(data)
    dispatch.optim_step = lambda name: worker.optim_step()

    def scored(name, data, key, mini_batch_boundaries):
        wrapped = Wrapped(reference if name == "ref" else model)
        with torch.no_grad():
            size = data.metadata["response_length"]
            return wrapped(data["sequences"], size, data["attention_mask"])[0]

    trainer._execute_forward_pass = scored
    own = type(trainer).__mro__[1].train_critic_and_policy
    trainer.train_critic_and_policy = lambda data: own(trainer, data)


def with_lengths(sampler) -> None:
    """SkyRL's own statistics of the answers, which its generators add."""
    from skyrl.train.generators.utils import get_rollout_metrics

    plain = sampler.generate

    async def generate(asked):
        done = await plain(asked)
        told = get_rollout_metrics(done["response_ids"], done["rewards"])
        return done | {"rollout_metrics": told}

    sampler.generate = generate


def questions(draw: random.Random) -> list[dict]:
    """What is asked at every evaluation."""
    rows = []
    for at, prompt in enumerate(prompts(draw)):
        right = {"method": "rule", "ground_truth": gold(prompt)}
        extras = {"data_source": "lab/letters", "reward_spec": right}
        asked = [{"role": "user", "content": prompt}]
        rows.append({"prompt": asked, "env_class": None, "env_extras": extras, "uid": f"e{at}"})
    return rows


def run(model, folder: Path) -> None:
    """One run; its log and its evaluations are left in the folder."""
    from skyrl.train.utils.tracking import Tracking

    torch.manual_seed(0)
    trainer = trainer_of(model, "", steps=STEPS)
    config = trainer.cfg
    config.trainer.algorithm.use_kl_loss = True
    config.trainer.eval_interval = EVERY
    config.trainer.eval_before_train = False
    config.trainer.export_path = str(folder)
    config.trainer.micro_train_batch_size_per_gpu = PROMPTS
    config.generator.eval_n_samples_per_prompt = 4
    trainer.ref_model = SimpleNamespace()
    with_workers(trainer, model)
    with_lengths(trainer.generator)
    trainer.eval_dataloader = [questions(random.Random(7))]
    os.environ["TENSORBOARD_DIR"] = str(folder / "tensorboard")
    trainer.tracker = Tracking("lab", "healthy", "tensorboard", config)
    asyncio.run(trainer.train())


def keep(folder: Path, kept: Path) -> None:
    """The files without the name of this machine."""
    (log,) = (folder / "tensorboard").iterdir()
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(log, kept / EVENTS)
    shutil.rmtree(kept / "dumped_evals", ignore_errors=True)
    shutil.copytree(folder / "dumped_evals", kept / "dumped_evals")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--skyrl-path", required=True, help="where skyrl is, `:` between folders")
    parser.add_argument("--keep", type=Path, required=True)
    asked = parser.parse_args()
    sys.path += asked.skyrl_path.split(os.pathsep)
    typing.TypedDict = typing_extensions.TypedDict  # SkyRL wants Python 3.12 for this one name
    torch.cuda.current_device = lambda: "cpu"
    torch.autocast = lambda **_: nullcontext()
    with tempfile.TemporaryDirectory() as name:
        model = LlamaForCausalLM.from_pretrained(make_model(Path(name) / "model"))
        run(model, Path(name))
        keep(Path(name), asked.keep)


if __name__ == "__main__":
    main()
