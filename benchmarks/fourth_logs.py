"""Logs of a fourth kind, read by somebody who had never seen flatline: its first look counts.

    python benchmarks/fourth_logs.py [NAME ...] [--folder docs/real-logs]

Data that gets harder, a rate that is restarted, a job that begins anew after every preemption, a
sampler that is too hot, eight passes over a batch, old rollouts, a filter that eats the groups, a
tool that fails, a vote that pays no answer; and three runs with nothing wrong: one learns, one has
nothing left to learn, one has only begun. W&B's two exports, a table out of a notebook, slime's
lines, TensorBoard's long table, key=value lines, nested rows, decimal commas. Real trainings of the
lab policy, about a minute each on one core.
"""

import copy
import random
import re
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from datasets import Dataset
from foreign_script import ASKED, Reward, correct
from made_logs import StopAt, main, rounded, texts
from third_logs import Plan, loaded, right
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from flatline.tasks import make_task
from flatline.training.lab.tokenizer import checkpoint_folder

Row = dict[str, Any]
Pay = Callable[[list[str], list[str]], torch.Tensor]
ANSWER = re.compile(r"####\s*(-?\d+)")
CALL = re.compile(r'"expression": "([^"]*)"')
TAGGED = re.compile(r"<answer>\s*(-?[\d./]+)")
LIMIT = 64


def word_problems(count: int, split: str = "train") -> list[Row]:
    task = make_task("gsm8k")
    return [
        {"prompt": task.messages(one), "answer": one.answer, "hops": one.hops}
        for one in task.load(f"lab,,{split}[:{count}]", split=split)
    ]


def tool_problems(count: int) -> list[Row]:
    task = make_task("toolmath")
    found = task.load(f"lab,,train[:{count}]", split="train")
    return [{"prompt": task.messages(one), "answer": one.answer} for one in found]


# TRL


def trl(rows: list[Row], rewards: list[Reward], **asked: Any) -> Any:
    """A trainer of TRL's that has trained."""
    cls = asked.pop("trainer", GRPOTrainer)
    config = RLOOConfig if cls is RLOOTrainer else GRPOConfig
    stop, held_out = asked.pop("stop", 0), asked.pop("held_out", None)
    model, settled = asked.pop("model", None), dict(ASKED)
    if cls is RLOOTrainer:
        settled = {name: one for name, one in ASKED.items() if "_" in name}
        del settled["loss_type"], settled["scale_rewards"]
    settled |= {"per_device_train_batch_size": 16, "output_dir": tempfile.mkdtemp()}
    trainer = cls(
        model=model or loaded(),
        processing_class=AutoTokenizer.from_pretrained(str(checkpoint_folder())),
        reward_funcs=rewards,
        args=config(**settled | asked),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(held_out) if held_out else None,
        callbacks=[StopAt(stop)] if stop else [],
    )
    trainer.train()
    return trainer


def history(trainer: Any) -> list[Row]:
    return [row for row in trainer.state.log_history if "train_runtime" not in row]


def state(trainer: Any) -> Row:
    """`trainer_state.json`."""
    told = ("best_metric", "epoch", "eval_steps", "global_step", "logging_steps", "max_steps")
    kept = {name: getattr(trainer.state, name) for name in told}
    return kept | {"log_history": history(trainer), "train_batch_size": 16}


def accuracy_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return correct(completions, answer)


def format_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.2 * bool(ANSWER.search(text)) for text in texts(completions)]


def curriculum() -> Row:
    """Prompts from the shortest to the longest, not shuffled; the evaluation is of all lengths."""
    by_hops = {hops: [] for hops in (2, 3, 4, 5)}
    for row in word_problems(4000):
        by_hops[row["hops"]].append(row)
    ordered = [row for rows in by_hops.values() for row in rows[:120]]
    return state(
        trl(ordered, [accuracy_reward], max_steps=60, shuffle_dataset=False, learning_rate=1e-4,
            beta=0.0, max_completion_length=96, held_out=word_problems(48, "validation"),
            eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=48)
    )  # fmt: skip


def restarts() -> list[Row]:
    """A warm-up to far too high a rate, which comes back twice; the history of W&B."""
    trainer = trl(
        word_problems(80), [accuracy_reward, format_reward], max_steps=100, learning_rate=1.8e-3,
        warmup_steps=20, lr_scheduler_type="cosine_with_restarts", beta=0.001, adam_beta1=0.0,
        lr_scheduler_kwargs={"num_cycles": 3},
    )  # fmt: skip
    rows, clock = [], 0.0
    for n, row in enumerate(history(trainer)):
        row["global_step"] = row.pop("step")
        clock += row["step_time"]
        rows.append({"_step": n, "_runtime": clock, "_timestamp": 1762160400 + int(clock)}
                    | {f"train/{name}": one for name, one in row.items()})  # fmt: skip
    return rows


def preempted() -> list[str]:
    """A job that was taken away three times and never found its checkpoint; a chart of W&B's."""
    shown = ("reward", "reward_std", "kl", "learning_rate", "grad_norm", "completions/mean_length")
    rows: list[Row] = []
    for stop in (34, 22, 41):
        trainer = trl(
            word_problems(200), [accuracy_reward], max_steps=400, warmup_steps=10, stop=stop,
            learning_rate=2e-4, lr_scheduler_type="constant_with_warmup",
        )  # fmt: skip
        rows += history(trainer)
    kinds = ("", "__MIN", "__MAX")
    names = [f"peach-sun-7 - train/{name}{kind}" for name in shown for kind in kinds]
    lines = [",".join(f'"{name}"' for name in ["Step", *names])]
    for n, row in enumerate(rounded(rows)):
        cells = [str(row[name]) for name in shown for _ in kinds]
        lines.append(",".join(f'"{cell}"' for cell in [str(n), *cells]))
    return lines


def hot_sampler() -> list[str]:
    """Samples at a temperature of 1.7; the table that a notebook shows."""
    trainer = trl(word_problems(200), [accuracy_reward, format_reward], max_steps=50,
                  temperature=1.7, learning_rate=1e-4, beta=0.04)  # fmt: skip
    names = ("reward", "reward_std", "completions/mean_length", "completions/min_length",
             "completions/max_length", "completions/clipped_ratio",
             "completions/mean_terminated_length", "kl", "entropy", "frac_reward_zero_std",
             "rewards/accuracy_reward/mean", "rewards/format_reward/mean")  # fmt: skip
    shown = ["Step", "Training Loss", *(name.replace("/", " / ") for name in names)]
    lines = ["GRPO on 1 device | Num examples = 200 | Num Epochs = 2 | Total steps = 50",
             "Batch size per device = 16 | Gradient accumulation steps = 2 | Total batch = 32",
             "Sampling: temperature = 1.7, num_generations = 4, max_completion_length = 64",
             f" [50/50 {trainer.state.log_history[-1]['train_runtime']:.0f}s, Epoch 2.00/2]",
             "\t".join(shown)]  # fmt: skip
    for row in history(trainer):
        cells = [f"{row[name]:.6f}" for name in ("loss", *names)]
        lines.append("\t".join([str(row["step"]), *cells]))
    return lines


def reference_follows() -> Row:
    """Learns; every fifteen steps the reference is set to the policy."""
    return state(
        trl(word_problems(160), [accuracy_reward, format_reward], max_steps=105,
            learning_rate=3e-4, beta=0.05, sync_ref_model=True, ref_model_sync_steps=15,
            ref_model_mixup_alpha=1.0)
    )  # fmt: skip


def nothing_left() -> Row:
    """Goes on with prompts that the policy has already learnt."""
    easy = [row for row in word_problems(200) if row["hops"] == 2][:32]
    before = trl(easy, [accuracy_reward], max_steps=160, learning_rate=4e-4, beta=0.0,
                 lr_scheduler_type="linear")  # fmt: skip
    return state(
        trl(easy, [accuracy_reward], max_steps=60, learning_rate=2e-5, model=before.model,
            trainer=RLOOTrainer, beta=0.0, num_generations=8, logging_steps=2, seed=11)
    )  # fmt: skip


# Loops of one's own


@dataclass
class Episode:
    ids: list[int]
    own: list[int]
    turns: list[str] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    ended: bool = False

    @property
    def length(self) -> int:
        return sum(self.own)


@dataclass
class Own:
    """GRPO in somebody's own loop: old rollouts, several passes, tools, a filter."""

    steps: int
    seed: int
    pay: Pay = right
    rows: list[Row] = field(default_factory=lambda: word_problems(400))
    rate: Plan = lambda step: 1e-4
    groups: int = 8
    size: int = 4
    passes: int = 1
    clip: float = 0.2
    lag: Plan = lambda step: 0
    rounds: int = 0
    tool_fails: Plan | None = None
    evaluate_every: int = 0

    def run(self) -> list[Row]:
        torch.manual_seed(self.seed)
        self.draw = random.Random(self.seed)
        self.model, self.sampler, self.reference = (loaded() for _ in range(3))
        self.tokenizer = AutoTokenizer.from_pretrained(str(checkpoint_folder()))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.versions: deque[Row] = deque(maxlen=64)
        self.held_out = word_problems(64, "validation") if self.evaluate_every else []
        return rounded([self.step(step) for step in range(1, self.steps + 1)])

    def step(self, step: int) -> Row:
        began = time.perf_counter()
        self.versions.appendleft(copy.deepcopy(self.model.state_dict()))
        lag = min(int(self.lag(step)), len(self.versions) - 1)
        self.sampler.load_state_dict(self.versions[lag])
        episodes, paid, gold, told = self.gather(step)
        generated = time.perf_counter()
        group = paid.view(-1, self.size)
        spread = group.std(1, keepdim=True)
        advantage = ((group - group.mean(1, keepdim=True)) / (spread + 1e-4)).view(-1, 1)
        ids = pad_sequence([torch.tensor(one.ids) for one in episodes], batch_first=True)
        own = pad_sequence([torch.tensor(one.own) for one in episodes], batch_first=True)[:, 1:]
        mean = lambda one: (one * own).sum() / own.sum()  # noqa: E731
        with torch.no_grad():
            old, now, first = (self.logp(one, ids)[0] for one in
                               (self.sampler, self.model, self.reference))  # fmt: skip
        self.optimizer.param_groups[0]["lr"] = self.rate(step)
        losses, norms, clipped, moved = [], [], [], []
        for _ in range(self.passes):
            logp, entropy = self.logp(self.model, ids)
            ratio = (logp - old).exp()
            bound = ratio.clamp(1 - self.clip, 1 + self.clip)
            loss = -mean(torch.minimum(ratio * advantage, bound * advantage))
            self.optimizer.zero_grad()
            loss.backward()
            norms.append(clip_grad_norm_(self.model.parameters(), 1.0))
            self.optimizer.step()
            losses.append(loss.detach())
            clipped.append(mean(((ratio - 1).abs() > self.clip).float()))
            moved.append(mean((ratio - 1) - (logp - old)).detach())
            if len(losses) == 1:
                spent = mean(entropy).detach()
        back = first - now
        length = torch.tensor([float(one.length) for one in episodes])
        said = [one.turns[-1] for one in episodes]
        calls = sum(one.calls for one in episodes)
        row = told | {
            "step": step, "reward": paid.mean(), "spread": paid.std(), "lag": lag,
            "equal": (spread == 0).float().mean(), "right": right(said, gold).mean(),
            "marked": sum(bool(ANSWER.search(text)) for text in said) / len(said),
            "entropy": spent, "length": length.mean(), "longest": length.max(),
            "cut": sum(not one.ended for one in episodes) / len(episodes),
            "norm": norms[0], "norm_last": norms[-1], "loss": losses[0], "loss_last": losses[-1],
            "clipped": clipped[-1], "moved": moved[-1], "apart": mean((now - old).abs()),
            "kl": mean(back.clamp(max=20).exp() - back - 1), "rate": self.rate(step),
            "calls": calls / len(episodes),
            "turns": sum(len(one.turns) for one in episodes) / len(episodes),
            "failed": sum(one.failed for one in episodes) / max(1, calls),
            "generating": generated - began, "seconds": time.perf_counter() - began,
        }  # fmt: skip
        if self.evaluate_every and step % self.evaluate_every == 0:
            self.sampler.load_state_dict(self.model.state_dict())
            asked = [one for one in self.held_out for _ in range(2)]
            said = [one.turns[-1] for one in self.rollout([one["prompt"] for one in asked], step)]
            row["eval"] = right(said, [one["answer"] for one in asked]).mean()
        return row

    def gather(self, step: int) -> tuple[list[Episode], torch.Tensor, list[str], Row]:
        """A batch; with `rounds` only of groups that have a spread, after so many rounds of any."""
        episodes, paid, gold = [], [], []
        seen = Counter()
        for _ in range(max(1, self.rounds)):
            seen["rounds"] += 1
            picked = self.draw.sample(self.rows, self.groups)
            prompts = [one["prompt"] for one in picked for _ in range(self.size)]
            answers = [one["answer"] for one in picked for _ in range(self.size)]
            found = self.rollout(prompts, step)
            worth = self.pay([one.turns[-1] for one in found], answers)
            for at in range(0, len(found), self.size):
                part = slice(at, at + self.size)
                same = bool((worth[part] == worth[at]).all())
                seen["asked"] += 1
                seen["all"] += same and bool(worth[at] > 0)
                seen["none"] += same and not bool(worth[at] > 0)
                if self.rounds and (same or len(paid) == self.groups):
                    continue
                episodes += found[part]
                gold += answers[part]
                paid.append(worth[part])
            if len(paid) == self.groups:
                break
        return episodes, torch.cat(paid), gold, {"kept": len(paid), **seen}

    def logp(self, model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        every = model(ids).logits[:, :-1].log_softmax(-1)
        chosen = every.gather(-1, ids[:, 1:, None]).squeeze(-1)
        return chosen, -(every.exp() * every).sum(-1)

    def rollout(self, prompts: list[Any], step: int) -> list[Episode]:
        tools = None if self.tool_fails is None else [make_task("toolmath").tools[0].schema()]
        coded = [
            self.tokenizer.apply_chat_template(
                one, tools=tools, add_generation_prompt=True, return_dict=False
            )
            for one in prompts
        ]
        episodes = [Episode(list(ids), [0] * len(ids)) for ids in coded]
        waiting = episodes
        while waiting:
            waiting = [one for one in self.turn(waiting) if self.answered(one, step)]
        return episodes

    @torch.no_grad()
    def turn(self, episodes: list[Episode]) -> list[Episode]:
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        width = max(len(one.ids) for one in episodes)
        ids = torch.tensor([[pad] * (width - len(one.ids)) + one.ids for one in episodes])
        out = self.sampler.generate(
            input_ids=ids, attention_mask=(ids != pad).long(), do_sample=True,
            max_new_tokens=LIMIT, pad_token_id=pad,
        )[:, width:].tolist()  # fmt: skip
        for one, new in zip(episodes, out, strict=True):
            one.ended = end in new
            new = new[: new.index(end) + 1] if one.ended else new
            one.ids += new
            one.own += [1] * len(new)
            one.turns.append(self.tokenizer.decode(new, skip_special_tokens=True))
        return episodes

    def answered(self, one: Episode, step: int) -> bool:
        """Whether the last turn was a call of the tool, which then has its answer."""
        call = CALL.search(one.turns[-1])
        if self.tool_fails is None or not call or not one.ended or len(one.turns) >= 8:
            return False
        one.calls += 1
        said = value_of(call[1])
        if said is None or self.draw.random() < self.tool_fails(step):
            one.failed, said = one.failed + 1, "No documents found."
        text = (f"\n<|im_start|>user\n<tool_response>\n{said}\n</tool_response><|im_end|>\n"
                "<|im_start|>assistant\n")  # fmt: skip
        new = self.tokenizer.encode(text, add_special_tokens=False)
        one.ids += new
        one.own += [0] * len(new)
        return True


def value_of(expression: str) -> str | None:
    found = re.fullmatch(r"(-?\d+) ([-+*/]) (-?\d+)", expression.strip())
    if not found or (found[2] == "/" and int(found[3]) == 0):
        return None
    a, b = Fraction(found[1]), Fraction(found[3])
    worth = {"+": a + b, "-": a - b, "*": a * b}
    return str(a / b if found[2] == "/" else worth[found[2]])


def tagged(said: list[str], gold: list[str]) -> torch.Tensor:
    found = [TAGGED.findall(text) for text in said]
    return torch.tensor([float(one[-1:] == [g]) for one, g in zip(found, gold, strict=True)])


def vote(said: list[str], gold: list[str]) -> torch.Tensor:
    """1 for what most of the group say; to say no number at all is a vote as well."""
    votes = [(ANSWER.findall(text) or [None])[-1] for text in said]
    paid = []
    for at in range(0, len(votes), 8):
        most = Counter(votes[at : at + 8]).most_common(1)[0][0]
        paid += [float(one == most) for one in votes[at : at + 8]]
    return torch.tensor(paid)


def old_rollouts() -> list[str]:
    """slime's two lines of a step; the rollouts are of ever older weights."""
    rows = Own(80, seed=51, rate=lambda step: 8e-4, lag=lambda step: step // 4).run()
    lines = []
    for n, row in enumerate(rows):
        rollout = {
            "rollout/raw_reward": row["reward"], "rollout/response_len/mean": row["length"],
            "rollout/response_len/max": row["longest"], "rollout/truncated_ratio": row["cut"],
            "rollout/zero_std/ratio": row["equal"], "rollout/weight_version_lag": row["lag"],
            "perf/rollout_time": row["generating"],
        }  # fmt: skip
        train = {
            "train/loss": row["loss"], "train/pg_clipfrac": row["clipped"],
            "train/ppo_kl": row["moved"], "train/entropy_loss": row["entropy"],
            "train/train_rollout_logprob_abs_diff": row["apart"], "train/grad_norm": row["norm"],
            "train/lr-pg_0": row["rate"], "train/step": n,
        }  # fmt: skip
        lines.append(f"(RolloutManager pid=1822) rollout {n}: {rollout}")
        lines.append(f"(MegatronTrainRayActor pid=2310) step {n}: {train}")
    return lines


def filtered() -> list[Row]:
    """Only groups with a spread are kept, and the reward is of those."""
    easy = [row for row in word_problems(400) if row["hops"] < 4][:40]
    rows = Own(90, seed=52, rows=easy, rate=lambda step: 4e-4, rounds=12).run()
    return [{
        "iter": row["step"], "rollout": {
            "score": row["reward"], "groups_sampled": row["asked"], "groups_kept": row["kept"],
            "solve_all": row["all"] / row["asked"], "solve_none": row["none"] / row["asked"],
            "gen_rounds": row["rounds"], "resp_len": row["length"]},
        "optim": {"pg_loss": row["loss"], "entropy": row["entropy"], "gnorm": row["norm"],
                  "lr": row["rate"]},
        "time": {"gen_s": row["generating"], "iter_s": row["seconds"]},
    } for row in rows]  # fmt: skip


def eight_passes() -> list[str]:
    """Eight passes over every batch and no clip to speak of; TensorBoard's events, one a line."""
    rows = Own(60, seed=53, passes=8, clip=10.0, rate=lambda step: 2e-4).run()
    lines, clock = ["run,tag,step,wall_time,value"], 1761904800.0
    for row in rows:
        clock += row["seconds"]
        told = {
            "charts/episodic_return": row["reward"], "charts/learning_rate": row["rate"],
            "charts/SPS": 32 / row["seconds"], "charts/response_tokens": row["length"],
            "losses/policy_loss": row["loss_last"], "losses/entropy": row["entropy"],
            "losses/approx_kl": row["moved"], "losses/kl_to_ref": row["kl"],
            "losses/grad_norm": row["norm"],
        }  # fmt: skip
        lines += [f"grpo__53,{tag},{32 * row['step']},{clock:.3f},{one:.6g}"
                  for tag, one in told.items()]  # fmt: skip
    return lines


def calculator() -> list[str]:
    """The tool that every answer needs fails for twenty steps; key=value lines."""
    rows = Own(70, seed=54, pay=tagged, rows=tool_problems(300), rate=lambda step: 3e-4,
               tool_fails=lambda step: 0.7 if 26 <= step <= 45 else 0.02).run()  # fmt: skip
    lines, clock = [], 0.0
    for row in rows:
        clock += row["seconds"]
        told = {
            "step": row["step"], "env.solved": row["reward"], "env.turns": row["turns"],
            "tool.calls_per_episode": row["calls"], "tool.error_rate": row["failed"],
            "policy.loss": row["loss"], "policy.entropy": row["entropy"], "policy.kl": row["kl"],
            "policy.grad_norm": row["norm"], "gen.tokens": row["length"],
            "groups.degenerate": row["equal"], "step_ms": 1000 * row["seconds"],
        }  # fmt: skip
        stamp = f"2025-11-06T09:{int(clock) // 60:02d}:{clock % 60:06.3f}Z"
        lines.append(f'ts={stamp} level=info msg="update done" '
                     + " ".join(f"{name}={one:.5g}" for name, one in told.items()))  # fmt: skip
    return lines


def majority() -> list[str]:
    """Paid for what the others say; a sheet with decimal commas and a row for an evaluation."""
    rows = Own(100, seed=55, pay=vote, groups=4, size=8, rate=lambda step: 4e-4,
               evaluate_every=10).run()  # fmt: skip
    names = ["Schritt", "reward (majority)", "reward std", "answer extracted %", "entropy",
             "resp. tokens", "KL", "groups w/o signal %", "grad norm", "val pass@1 %"]  # fmt: skip
    lines = [names]
    for row in rows:
        told = [row["reward"], row["spread"], 100 * row["marked"], row["entropy"], row["length"],
                row["kl"], 100 * row["equal"], row["norm"]]  # fmt: skip
        lines.append([str(row["step"]), *(f"{one:.4f}" for one in told), ""])
        if "eval" in row:
            lines.append([str(row["step"]), *[""] * 8, f"{100 * row['eval']:.1f}"])
    return [";".join(cell.replace(".", ",") if n else cell for cell in line)
            for n, line in enumerate(lines)]  # fmt: skip


def only_begun() -> list[str]:
    """Thirty of two thousand steps, in the warm-up."""
    rows = Own(30, seed=56, rate=lambda step: 1e-5 * step / 200).run()
    lines = ["Namespace(model='lab-0.2M', lr=1e-05, warmup=200, iters=2000, G=4, prompts=8)"]
    clock = 14 * 3600.0
    for row in rows:
        clock += row["seconds"]
        lines.append(
            f"[{time.strftime('%H:%M:%S', time.gmtime(clock))}] it {row['step']:>4}/2000 | "
            f"R {row['reward']:.3f} ± {row['spread']:.3f} | acc {100 * row['right']:.1f}% | "
            f"len {row['length']:.1f} (max {row['longest']:.0f}, trunc {100 * row['cut']:.1f}%) | "
            f"H {row['entropy']:.3f} | |g| {row['norm']:.3f} | lr {row['rate']:.2e} | "
            f"dead {row['equal'] * 8:.0f}/8 | {row['seconds']:.2f} s/it"
        )
    return lines


MADE: dict[str, Callable[[], Any]] = {
    "harder-later.json": curriculum,
    "three-restarts.jsonl": restarts,
    "peach-sun.csv": preempted,
    "notebook-hot.txt": hot_sampler,
    "reference-follows.json": reference_follows,
    "nothing-left.json": nothing_left,
    "slime-old.log": old_rollouts,
    "filtered.jsonl": filtered,
    "tensorboard-passes.csv": eight_passes,
    "calculator.log": calculator,
    "majority.csv": majority,
    "only-begun.log": only_begun,
}
"""Log -> the script behind it."""


if __name__ == "__main__":
    sys.exit(main(__doc__, MADE))
