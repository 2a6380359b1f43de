"""Defects that a user's own code could hold and that are not in flatline's catalogue.

    python benchmarks/foreign_faults.py --list
    python benchmarks/foreign_faults.py --only sign-flipped     # train three steps with it
    python benchmarks/foreign_faults.py --checkup [NAME ...]    # what a checkup says: the table
    python benchmarks/foreign_faults.py --where [NAME ...]      # which lines it points at
    python benchmarks/foreign_faults.py --tolerances [NAME ...] # how far apart healthy steps are

They were written, with the stage at which each departs, before the specification of a step existed
(the history of the repository shows the order), so that it could not be shaped after them.
"""

import argparse
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import trl.trainer.grpo_trainer as trl_module
from foreign_script import HEALTHY, Script, build, correct, script_of
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from flatline.diagnosis.checkup import checkup
from flatline.hypotheses.departure import CODES
from flatline.live.trl.subject import TrlSubject
from flatline.live.where.place import Where


class ForeignFault(NamedTuple):
    """One defect, and where it departs from what was asked for."""

    name: str
    stage: str
    setting: str
    """The healthy setting that it is planted in."""
    plant: Callable[[Script], None]
    text: str


FAULTS: list[ForeignFault] = []


def fault(stage: str, setting: str = "grpo") -> Callable[[Callable[[Script], None]], Any]:
    """Puts a function that plants a defect into the list; its docstring says what goes wrong."""

    def put(plant: Callable[[Script], None]) -> Callable[[Script], None]:
        name = plant.__name__.replace("_", "-")
        FAULTS.append(ForeignFault(name, stage, setting, plant, (plant.__doc__ or "").strip()))
        return plant

    return put


@contextmanager
def held(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes with other values for a while."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


# -- rows


@fault("rows")
def debug_subset(script: Script) -> None:
    """Eight rows, left in from debugging, are all that is ever drawn."""

    class Mine(GRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return super()._get_train_sampler(self.train_dataset.select(range(8)))

    script.trainer = Mine


@fault("rows")
def prompts_interleaved(script: Script) -> None:
    """The batch is repeated as a whole: 0 1 2 3 0 1 2 3 ... where 0 0 0 0 1 1 1 1 was asked."""

    class Interleaved(RepeatSampler):
        def __iter__(self) -> Iterator[int]:
            size = self.batch_size * self.mini_repeat_count
            drawn = list(super().__iter__())
            for start in range(0, len(drawn), size):
                chunk = drawn[start : start + size]
                for turn in range(self.mini_repeat_count):
                    yield from chunk[turn :: self.mini_repeat_count]

    class Mine(GRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return Interleaved(
                self.train_dataset,
                mini_repeat_count=self.num_generations,
                batch_size=self.args.generation_batch_size // self.num_generations,
                repeat_count=self.num_iterations * self.args.steps_per_generation,
                seed=self.args.seed,
            )

    script.trainer = Mine


# -- prompts


@fault("prompts")
def prompts_lowercased(script: Script) -> None:
    """A normaliser of another dataset lower-cases every message before the template."""

    class Mine(GRPOTrainer):
        def _tokenize_prompts(self, prompts: list[Any]) -> Any:
            lower = [[{**m, "content": m["content"].lower()} for m in prompt] for prompt in prompts]
            return super()._tokenize_prompts(lower)

    script.trainer = Mine


# -- completions


@fault("completions")
def padded_on_the_right(script: Script) -> None:
    """Prompts are padded on the right at the sampler, which goes on after the padding."""

    class Mine(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            def right(tensors: Any, padding_side: str = "right", **rest: Any) -> Any:
                return pad(tensors, padding_side="right", **rest)

            pad = trl_module.pad
            with held(trl_module, pad=right):
                return super()._generate_single_turn(*args, **kwargs)

    script.trainer = Mine


@fault("completions")
def completions_rolled(script: Script) -> None:
    """Each prompt is given the completion of the one before it."""

    class Mine(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            ids, logprobs = super()._generate_single_turn(*args, **kwargs)
            return ids[-1:] + ids[:-1], logprobs

    script.trainer = Mine


# -- mask


@fault("mask")
def mask_shifted_when_cut(script: Script) -> None:
    """The loss mask is one token late, only in completions that were cut at the limit."""
    script.asked["max_completion_length"] = 32

    class Mine(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            mask = out["completion_mask"].clone()
            ends = torch.tensor(self.eos_token_ids)
            cut = ~torch.isin(out["completion_ids"], ends).any(1)
            mask[cut] = torch.nn.functional.pad(mask[cut], (1, 0))[:, :-1]
            return {**out, "tool_mask": mask}

    script.trainer = Mine


@fault("mask")
def last_tokens_only(script: Script) -> None:
    """Only the last eight tokens of a completion carry a loss."""

    class Mine(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            mask = out["completion_mask"]
            left = mask.flip(1).cumsum(1).flip(1)
            return {**out, "tool_mask": mask * (left <= 8)}

    script.trainer = Mine


# -- rewards


@fault("rewards")
def neighbours_reward(script: Script) -> None:
    """Every row gets the reward of the row before it."""

    class Mine(GRPOTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
            return super()._calculate_rewards(*args, **kwargs).roll(1, 0)

    script.trainer = Mine


@fault("rewards", "two-rewards-weighted")
def second_weight_ignored(script: Script) -> None:
    """The second reward function counts in full where half was asked."""

    class Mine(GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.reward_weights = torch.ones(len(self.reward_funcs))

    script.trainer = Mine


@fault("rewards")
def gold_of_the_next_row(script: Script) -> None:
    """The column of gold answers is shifted by one row when the data are prepared."""
    answers = [row["answer"] for row in script.rows]
    for row, answer in zip(script.rows, answers[1:] + answers[:1], strict=True):
        row["answer"] = answer


@fault("rewards")
def reward_remembers(script: Script) -> None:
    """A reward that takes off what the row before it got: it depends on the order of the batch."""

    def relative(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        paid = correct(completions, answer)
        return [now - 0.5 * before for now, before in zip(paid, [0.0, *paid[:-1]], strict=True)]

    script.rewards = [relative, script.rewards[1]]


# -- advantages


def with_advantages(make: Callable[[Tensor, int], Tensor]) -> type[GRPOTrainer]:
    """A trainer whose advantages are made by the user's own function of rewards and group size."""

    class Mine(GRPOTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
            self._paid = super()._calculate_rewards(*args, **kwargs)
            return self._paid

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            rewards = (self._paid * self.reward_weights).nansum(1)
            return {**out, "advantages": make(rewards, self.num_generations)}

    return Mine


@fault("advantages")
def rewards_as_advantages(script: Script) -> None:
    """The rewards themselves, without a baseline."""
    script.trainer = with_advantages(lambda rewards, group: rewards)


@fault("advantages")
def batch_baseline(script: Script) -> None:
    """Mean and spread are those of the whole batch where those of the group were asked."""
    script.trainer = with_advantages(
        lambda rewards, group: (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    )


@fault("advantages")
def std_over_the_wrong_axis(script: Script) -> None:
    """The spread is taken over the groups and not inside each."""

    def make(rewards: Tensor, group: int) -> Tensor:
        grouped = rewards.view(-1, group)
        centred = grouped - grouped.mean(1, keepdim=True)
        return (centred / (grouped.std(0, keepdim=True) + 1e-4)).flatten()

    script.trainer = with_advantages(make)


@fault("advantages")
def only_praise(script: Script) -> None:
    """Advantages below 0 are set to 0."""

    class Mine(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            return {**out, "advantages": out["advantages"].clamp(min=0)}

    script.trainer = Mine


# -- log-probs


@fault("log-probs", "cool")
def temperature_not_in_scorer(script: Script) -> None:
    """The user's own scorer leaves out the temperature that the sampler applies."""

    class Mine(GRPOTrainer):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **_: Any
        ) -> Any:
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
            logps = torch.log_softmax(logits[:, -logits_to_keep - 1 : -1].float(), -1)
            chosen = logps.gather(2, input_ids[:, -logits_to_keep:, None])[..., 0]
            return chosen, -(logps.exp() * logps).sum(-1).detach(), None

    script.trainer = Mine


@fault("log-probs", "two-iterations")
def old_of_the_last_batch(script: Script) -> None:
    """Old log-probs are kept in a buffer that is written after it is read."""

    class Mine(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            own = out["old_per_token_logps"]
            before = getattr(self, "_kept_logps", torch.zeros_like(own))
            self._kept_logps = own
            width = own.shape[1]
            return {
                **out,
                "old_per_token_logps": torch.nn.functional.pad(before, (0, width))[:, :width],
            }

    script.trainer = Mine


@fault("log-probs", "full")
def reference_is_the_policy(script: Script) -> None:
    """The reference is the trained model itself, not a copy of where it began."""

    class Mine(GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.ref_model = self.model

    script.trainer = Mine


# -- ratio and KL


@fault("ratio and KL", "two-iterations")
def clip_bounds_swapped(script: Script) -> None:
    """The lower bound is used above and the upper one below."""

    class Mine(GRPOTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.epsilon_low, self.epsilon_high = self.epsilon_high, self.epsilon_low

    script.trainer = Mine


@fault("ratio and KL", "two-iterations")
def ratio_of_one(script: Script) -> None:
    """The old log-probs never reach the loss: every pass takes its own as the old ones."""

    class Mine(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            rest = {k: v for k, v in inputs.items() if k != "old_per_token_logps"}
            return super()._compute_loss(model, rest)

    script.trainer = Mine


@fault("ratio and KL")
def kl_not_in_the_loss(script: Script) -> None:
    """The KL is measured and logged, and is no part of the loss."""

    class Mine(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            with held(self, beta=0.0):
                return super()._compute_loss(model, inputs)

    script.trainer = Mine


# -- loss


@fault("loss")
def divided_by_the_limit(script: Script) -> None:
    """Each completion is divided by the longest length allowed and not by its own."""

    class Mine(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            with held(self, loss_type="dr_grpo"):
                return super()._compute_loss(model, inputs)

    script.trainer = Mine


@fault("loss")
def loss_negated(script: Script) -> None:
    """A return of an objective to be maximised: the sign of the loss is wrong."""

    class Mine(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return -super()._compute_loss(model, inputs)

    script.trainer = Mine


# -- gradient


@fault("gradient")
def sign_flipped(script: Script) -> None:
    """A callback turns the gradient around just before the optimizer steps."""

    class Flip(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            for weight in kw["model"].parameters():
                if weight.grad is not None:
                    weight.grad.neg_()

    script.callbacks.append(Flip())


@fault("gradient")
def half_detached(script: Script) -> None:
    """To save memory, the first half of each pass is scored without a gradient."""

    class Mine(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            logps, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            half = len(logps) // 2
            return torch.cat([logps[:half].detach(), logps[half:]]), *rest

    script.trainer = Mine


@fault("gradient")
def last_pass_only(script: Script) -> None:
    """Gradients are cleared before every pass: only the last pass of a step counts."""

    class Mine(GRPOTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            self.model.zero_grad()
            return super().training_step(*args, **kwargs)

    script.trainer = Mine


# -- update


@fault("update")
def rate_zero_from_step_5(script: Script) -> None:
    """The user's own schedule ends at step 5 of 20; the rate is 0 from there."""

    class Mine(GRPOTrainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer, lambda step: float(step < 5)
            )
            return self.lr_scheduler

    script.trainer = Mine


@fault("update")
def weights_restored(script: Script) -> None:
    """A callback that keeps the best weights puts the old ones back after every step."""

    class Restore(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            self.kept = [p.detach().clone() for p in kw["model"].parameters() if p.requires_grad]

        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            trained = [p for p in kw["model"].parameters() if p.requires_grad]
            with torch.no_grad():
                for weight, value in zip(trained, self.kept, strict=True):
                    weight.copy_(value)

    script.callbacks.append(Restore())


@fault("update")
def weights_averaged(script: Script) -> None:
    """The trained weights are overwritten by their own moving average after every step."""

    class Average(TrainerCallback):
        mean: list[Tensor] | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            trained = [p for p in kw["model"].parameters() if p.requires_grad]
            with torch.no_grad():
                if self.mean is None:
                    self.mean = [torch.zeros_like(p) for p in trained]
                for weight, mean in zip(trained, self.mean, strict=True):
                    mean.lerp_(weight, 0.1)
                    weight.copy_(mean)

    script.callbacks.append(Average())


@fault("update")
def half_the_weights(script: Script) -> None:
    """The optimizer is made with every second weight only."""

    class Mine(GRPOTrainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.AdamW(
                trained[::2], lr=self.args.learning_rate, weight_decay=0.0
            )
            return self.optimizer

    script.trainer = Mine


@fault("update")
def decay_not_asked(script: Script) -> None:
    """The optimizer decays the weights by 0.1 where no decay was asked."""

    class Mine(GRPOTrainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            optimizer = super().create_optimizer(*args, **kwargs)
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.1
            return optimizer

    script.trainer = Mine


# -- delivery


@fault("delivery")
def sampler_at_half_scale(script: Script) -> None:
    """The adapters count half while the model samples."""

    class Mine(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            layers = [m for m in self.model.modules() if isinstance(getattr(m, "scaling", 0), dict)]
            before = [dict(layer.scaling) for layer in layers]
            for layer in layers:
                layer.scaling = {name: value / 2 for name, value in layer.scaling.items()}
            try:
                return super()._generate_single_turn(*args, **kwargs)
            finally:
                for layer, value in zip(layers, before, strict=True):
                    layer.scaling = value

    script.trainer = Mine


def faulty(name: str) -> Script:
    """The user's script with one of the defects."""
    chosen = next((one for one in FAULTS if one.name == name), None)
    if chosen is None:
        raise SystemExit(
            f"No fault is called {name!r}.\nKnown: {', '.join(f.name for f in FAULTS)}."
        )
    script = script_of(chosen.setting)
    chosen.plant(script)
    return script


def show() -> None:
    """Every fault and every healthy setting."""
    for one in FAULTS:
        print(f"{one.stage:13} {one.name:28} ({one.setting}) {one.text}")
    for name, changes in HEALTHY.items():
        print(f"{'healthy':13} {name:28} {changes}")


def train(name: str) -> None:
    """Three steps: a fault runs without a word."""
    script = script_of(name) if name in HEALTHY else faulty(name)
    script.asked["max_steps"] = 3
    trainer = build(script)
    trainer.train()
    for line in trainer.state.log_history[:-1]:
        print({k: line[k] for k in ("loss", "grad_norm", "reward", "learning_rate") if k in line})


class Said(NamedTuple):
    """What a checkup of one script says."""

    name: str
    wanted: str
    """The stage at which its fault departs; empty for a healthy script."""
    cause: str
    """The first cause that is named; empty where nothing alarms."""
    stage: str
    """The first stage that departs, or the one that the cause stands for."""
    seconds: float

    @property
    def right(self) -> bool:
        return self.stage == self.wanted


def looked_at(name: str, **more: Any) -> Said:
    """A checkup of a healthy script, or of one with a fault."""
    script = script_of(name) if name in HEALTHY else faulty(name)
    script.asked |= more
    trainer = build(script)
    begun = time.perf_counter()
    report = checkup(trainer)
    seconds = time.perf_counter() - begun
    alarms = {one.hypothesis for one in report.alarms}
    stages = [stage for stage, code in CODES.items() if code in alarms]
    cause = report.causes[0] if report.causes else None
    named = f"{cause.hypothesis} {cause.name}" if cause else ""
    if cause and cause.hypothesis == "H33":  # rows are its own
        stages.insert(0, "rows")
    wanted = next((one.stage for one in FAULTS if one.name == name), "")
    return Said(name, wanted, named, stages[0] if stages else named and "none", seconds)


def table(names: list[str]) -> None:
    """What a checkup says of every script, as a table."""
    print("| script | departs at | first cause named | first stage that departs | |")
    print("|---|---|---|---|---|")
    every = []
    for name in names or [*HEALTHY, *(one.name for one in FAULTS)]:
        one = looked_at(name)
        every.append(one)
        verdict = "" if one.right else "**missed**" if one.wanted else "**false alarm**"
        wanted, stage = one.wanted or "nowhere (healthy)", one.stage or "none"
        cells = (name, wanted, one.cause or "nothing is wrong", stage, verdict)
        print(f"| {' | '.join(cells)} |", flush=True)
    faults = [one for one in every if one.wanted]
    healthy = [one for one in every if not one.wanted]
    print(f"\n{sum(one.right for one in faults)} of {len(faults)} faults named at their stage;")
    alarmed = sum(not one.right for one in healthy)
    print(f"{alarmed} of {len(healthy)} healthy scripts set off an alarm;")
    print(f"{max(one.seconds for one in every):.0f} s for the longest checkup.")


def lines_named(names: list[str]) -> None:
    """Which line each fault is looked for at, and whether that is in the fault itself."""
    print("| fault | first line that is named | in the fault, of the lines named |")
    print("|---|---|---|")
    first = seconds = 0.0
    chosen = [one for one in FAULTS if not names or one.name in names]
    for fault in chosen:
        subject = TrlSubject(build(faulty(fault.name)))
        with subject.standing_still():
            stages = subject.departures()
            begun = time.perf_counter()
            departing = next(one for one in stages.values() if one.departs)
            where = subject.lines_of(departing)
            seconds = max(seconds, time.perf_counter() - begun)
        inside = [_planted(fault, one) for one in where]
        first += inside[:1] == [True]
        named = f"`{where[0].source.replace('|', chr(92) + '|')}`" if where else "none"
        print(f"| {fault.name} | {named} | {sum(inside)} of {len(inside)} |", flush=True)
    print(f"\n{first:.0f} of {len(chosen)} faults hold the first line that is named;")
    print(f"{seconds:.0f} s for the longest search.")


def _planted(fault: ForeignFault, place: Where) -> bool:
    """Whether the line is one of those that plant the fault."""
    lines, start = inspect.getsourcelines(fault.plant)
    own = Path(place.file).name == Path(__file__).name
    return own and start <= place.line < start + len(lines)


def tolerances(names: list[str]) -> None:
    """How far healthy steps are from the specified ones, at each precision that a CPU has."""
    largest: dict[tuple[str, str], tuple[float, float]] = {}
    alarms = []
    for precision in ("fp32", "bf16 autocast", "bf16 weights"):
        for name in names or HEALTHY:
            script = script_of(name)
            script.asked["bf16"] = precision == "bf16 autocast"
            trainer = build(script)
            if precision == "bf16 weights":
                trainer.model.to(torch.bfloat16)
            for stage, one in TrlSubject(trainer).departures().items():
                alarms += [f"{precision} {name}: {one.text}"] if one.departs else []
                if one.measured is not None and one.limit is not None:
                    before = largest.get((stage, precision), (-1.0, 0.0))
                    largest[stage, precision] = max(before, (one.measured, one.limit))
    print("| stage | precision | largest of the healthy settings | limit |")
    print("|---|---|---|---|")
    for (stage, precision), (measured, limit) in sorted(largest.items()):
        print(f"| {stage} | {precision} | {measured:.1e} | {limit:.1e} |")
    print(f"\n{len(alarms)} departures in healthy settings. {' '.join(alarms)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tolerances", nargs="*", metavar="NAME", help="healthy departures")
    parser.add_argument("--where", nargs="*", metavar="NAME", help="lines that it points at")
    parser.add_argument("--checkup", nargs="*", metavar="NAME", help="what a checkup says")
    parser.add_argument("--list", action="store_true", help="every fault and healthy setting")
    parser.add_argument("--only", help="train three steps with this fault or healthy setting")
    chosen = parser.parse_args()
    if chosen.tolerances is not None:
        tolerances(chosen.tolerances)
    elif chosen.where is not None:
        lines_named(chosen.where)
    elif chosen.checkup is not None:
        table(chosen.checkup)
    elif chosen.only:
        train(chosen.only)
    else:
        show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
