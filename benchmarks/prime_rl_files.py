"""Metrics, traces and token export that prime-rl's own code writes, in a healthy run on a CPU.

    python benchmarks/prime_rl_files.py --path FOLDERS --keep tests/fixtures/prime_rl

FOLDERS (`:` between them) hold `src` and `packages/prime-rl-configs/src` of PrimeIntellect-ai/
prime-rl 0.8.0 at 559b447 (the package index has none), and verifiers 0.4.0, renderers,
prime-pydantic-config, msgspec, loguru, jaxtyping, beartype, orjson and what they import.

Code of prime-rl that runs: `GRPOAlgorithm.score_group`, `trace_to_samples`, `prepare_batch`,
`TrainEpisodes.metrics` and `EvalEpisodes.metrics` of the orchestrator; `compute_loss`,
`Tensors.compute_stats` and `TokenExporter` of the trainer; `FileMonitor` with the `Episode` of
verifiers. The two loops around them (`orchestrator.py`, `trainer/rl/train.py`) need CUDA, vLLM and
a transport: `run` stands for them, and the names in `of_the_loop` are typed from them.
"""

import argparse
import asyncio
import copy
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM

sys.path.append(str(Path(__file__).parent))

from framework_lab import chances_of, gold, prompts, reward, sampled, text, without
from tinker_api import END, make_model

STEPS, EVERY, RATE = 6, 3, 3e-3
PROMPTS, GROUP = 4, 8
KEPT = (1, 2)
"""The steps whose traces and tokens are kept."""
NAME = "letters"


def episode_of(prompt, own, logps, *, work, group: str):
    """An answer as verifiers keeps it."""
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.episode import EnvInfo, GroupInfo, TrainRunInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, ModelCall, Reward, TraceTask

    data = vf.TaskData(idx=0, prompt=text(prompt))
    task = TraceTask(type="Letters", data=data, key=text(prompt), hash=text(prompt))
    said = text([one for one in own if one != END])
    asked = MessageNode(
        message=vf.UserMessage(content=text(prompt)),
        token_ids=list(prompt),
        mask=[False] * len(prompt),
    )
    answer = MessageNode(
        parent=0,
        message=vf.AssistantMessage(content=said),
        sampled=True,
        token_ids=own,
        mask=[True] * len(own),
        logprobs=logps,
    )
    used = vf.Usage(prompt_tokens=len(prompt), completion_tokens=len(own))
    ended = "stop" if own[-1] == END else "length"
    trace = vf.Trace(
        task=task,
        agent=AgentInfo(config=AgentConfig()),
        nodes=[asked, answer],
        calls=[ModelCall(node=1, finish_reason=ended, usage=used)],
        rewards={"repeats": Reward(score=reward(said, gold(prompt)))},
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )
    return vf.Episode(
        env=EnvInfo(id=NAME, name=NAME),
        task=task,
        group=GroupInfo(id=group),
        run=TrainRunInfo(id="run", work=work),
        ok=True,
        traces=[trace],
    )


def played(model, draw: random.Random, step: int, *, size: int, training: bool = True) -> list:
    """Groups of episodes."""
    from verifiers.v1.episode import EvalWorkInfo, PolicySpan, TrainWorkInfo

    kind = TrainWorkInfo if training else EvalWorkInfo
    work = kind(step=step, policy=PolicySpan(start=step - 1, end=step - 1))
    groups = []
    for at, prompt in enumerate(prompts(draw, PROMPTS)):
        answers = sampled(model, [prompt] * size)
        named = {"work": work, "group": f"{step}-{at}"}
        groups.append([episode_of(prompt, *answer, **named) for answer in answers])
    return groups


class Trainer:
    """Where prime-rl's `train` is, around its own loss, statistics and export."""

    def __init__(self, model, folder: Path) -> None:
        from prime_rl.configs.trainer import DefaultLossConfig
        from prime_rl.trainer.rl.loss import setup_rl_loss_fn
        from prime_rl.trainer.rl.token_export import TokenExporter

        self.model, self.loss_config = model, DefaultLossConfig()
        self.loss = setup_rl_loss_fn(self.loss_config)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        self.exporter = TokenExporter(folder, rank=0)

    def step(self, samples: list, step: int) -> dict[str, float]:
        from prime_rl.trainer.utils import Tensors, filter_rl_trainer_tensor_stats_for_wandb

        tensors = Tensors()
        batches = _as_tensors(samples)
        scale = sum(int(one["loss_mask"].sum()) for one in batches)
        for at, batch in enumerate(batches):
            self.learn(batch, at, step, tensors, scale)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.exporter.mark_stable()
        of_the_loop = {"optim/lr": RATE, "optim/grad_norm": norm.item()}
        return filter_rl_trainer_tensor_stats_for_wandb(tensors.compute_stats()) | of_the_loop

    def learn(self, batch, at: int, step: int, tensors, scale: int) -> None:
        from prime_rl.trainer.rl.loss import (
            compute_importance_ratio_and_mismatch_kl,
            compute_loss,
            shift_tensor_right,
        )

        logps, entropy = chances_of(self.model, batch["input_ids"])
        last = torch.zeros(1, 1)
        out = {
            "logprobs": shift_tensor_right(torch.cat([logps, last], dim=1), pad_value=0.0),
            "entropy": shift_tensor_right(torch.cat([entropy.detach(), last], dim=1)),
        }
        sizes, mask = batch["sequence_lengths"], batch["loss_mask"]
        given = ("inference_logprobs", "advantages", "loss_mask")
        loss, measured = compute_loss(
            trainer_logprobs=out["logprobs"].squeeze().split(sizes),
            **{name: batch[name].squeeze().split(sizes) for name in given},
            **dict.fromkeys(("ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")),
            rl_loss_fn=self.loss,
            rl_scale=scale,
            ce_scale=1,
            ref_kl_scale=1,
        )
        loss.backward()
        found = out["logprobs"].detach(), batch["inference_logprobs"]
        tensors["mismatch_kl/all"].append(compute_importance_ratio_and_mismatch_kl(*found)[2][mask])
        tensors["entropy/all"].append(out["entropy"][mask])
        tensors["loss"].append(loss.detach()[None])
        for name, value in measured.items():
            tensors[name].append(value.detach())
        self.exporter.export(step, at, batch, out, sizes, self.loss_config)


def _as_tensors(samples: list) -> list:
    """prime-rl's micro batches, one sequence each: the small model knows no packing."""
    from prime_rl.trainer.batch import build_bin_cost, prepare_batch
    from prime_rl.trainer.rl.data import DataLoader

    made = []
    for one in samples:
        size = len(one.token_ids)
        ((batch,),) = prepare_batch([one], size, 1, build_bin_cost(None))
        made.append(DataLoader._micro_batch_to_tensor(None, batch))
    return made


async def run(model, folder: Path) -> None:
    """One run; its metrics, traces and tokens are left in the folder."""
    from prime_rl.configs.algorithm import GRPOAlgoConfig
    from prime_rl.configs.monitors import FileMonitorConfig
    from prime_rl.monitors.file import FileMonitor
    from prime_rl.orchestrator.algo.grpo import GRPOAlgorithm
    from prime_rl.orchestrator.metrics import EvalEpisodes, TrainEpisodes

    draw, trainer = random.Random(0), Trainer(model, folder)
    algorithm = GRPOAlgorithm(GRPOAlgoConfig(), None)
    orchestrator, of_trainer = FileMonitor(FileMonitorConfig()), FileMonitor(FileMonitorConfig())
    await orchestrator.init(folder / "orchestrator")
    await of_trainer.init(folder / "trainer")
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        groups = played(copy.deepcopy(model), draw, step, size=GROUP)
        episodes = [one for group in groups for one in group]
        await orchestrator.log(episodes, step, "train", "all")
        for group in groups:
            await algorithm.score_group(group)
        pool = TrainEpisodes(episodes, {one.traces[0].id for one in episodes})
        found = {}
        for subset, some in (("all", pool), ("effective", pool.effective)):
            found |= some.metrics.to_wandb(prefix="train/agg", subset=subset)
            found |= some.metrics.to_wandb(prefix=f"train/{NAME}", subset=subset)
        await orchestrator.log(pool.effective.vf_episodes, step, "train", "effective")
        measured = trainer.step(_samples(episodes), step)
        of_the_loop = {"time/step": time.perf_counter() - began, "step": step}
        await orchestrator.log(found | of_the_loop, step)
        await of_trainer.log(measured, step)
        await of_trainer.log(of_the_loop, step)
        if step % EVERY == 0:
            groups = played(model, random.Random(7), step, size=4, training=False)
            held_out = EvalEpisodes([one for group in groups for one in group], 4)
            await orchestrator.log(held_out.effective.vf_episodes, step, "eval", "effective")
            told = held_out.effective.metrics.to_wandb(prefix=f"eval/{NAME}", subset="effective")
            await orchestrator.log(told | {"step": step}, step)


def _samples(episodes: list) -> list:
    """What is trained on: rollouts whose group differs."""
    from prime_rl.orchestrator.algo.routing import is_trainable
    from prime_rl.orchestrator.trajectories import trace_to_samples
    from verifiers.v1.trace import Branch

    Branch.multi_modal_data = None  # prime-rl asks for it; verifiers 0.4.0 has it no more
    found = []
    for one in episodes:
        (trace,) = one.traces
        if is_trainable(trace):
            found += trace_to_samples(trace, env_name=NAME)
    for sample in found:
        sample.temperatures = [1.0] * len(sample.token_ids)
    return found


def keep(folder: Path, kept: Path) -> None:
    """The metrics, and the traces and tokens of the first steps."""
    shutil.rmtree(kept, ignore_errors=True)
    for part in ("orchestrator", "trainer"):
        (kept / part).mkdir(parents=True)
        shutil.copy(folder / part / "metrics.jsonl", kept / part)
    for step in KEPT:
        for part in (f"orchestrator/rollouts/step_{step}/train/all", f"token_exports/step_{step}"):
            shutil.copytree(folder / part, kept / part)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--keep", type=Path, required=True)
    asked = parser.parse_args()
    sys.path += asked.path.split(os.pathsep)
    without("wandb", "wandb_workspaces", "wandb_gql", "torchtitan", "anthropic", "math_verify")
    without("prime_sandboxes", "prime_cli", "prime_runs")
    moved = torch.Tensor.to
    torch.Tensor.to = lambda one, *to, **more: moved(one, *(to if to != ("cuda",) else ()), **more)
    with tempfile.TemporaryDirectory() as name:
        dist.init_process_group("gloo", init_method=f"file://{name}/meet", rank=0, world_size=1)
        torch.manual_seed(0)
        model = LlamaForCausalLM.from_pretrained(make_model(Path(name) / "model"))
        asyncio.run(run(model, Path(name) / "run"))
        keep(Path(name) / "run", asked.keep)


if __name__ == "__main__":
    main()
