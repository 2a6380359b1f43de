"""TRL's trainers beside GRPO against their specification: healthy settings, planted departures.

    python benchmarks/family.py            every healthy setting and every fault, by stage
    python benchmarks/family.py NAME ...   only these

The script is the one of `foreign_script.py`, given to RLOO and to GMPO.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from foreign_script import Script, build, script_of
from trl import RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from flatline.live.trl.subject import TrlSubject

NOT_RLOO = ("loss_type", "scale_rewards")
"""Arguments of GRPO that RLOO has not."""

HEALTHY: dict[str, dict[str, Any]] = {
    "rloo": {},
    "full": {"lora": False},
    "no-kl": {"beta": 0.0},
    "two-iterations": {"num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.3},
    "two-steps-a-generation": {"steps_per_generation": 4},
    "normalised": {"normalize_advantages": True},
    "reward-range": {"reward_clip_range": (0.0, 0.5)},
    "cut-masked": {"mask_truncated_completions": True, "max_completion_length": 32},
    "cool": {"temperature": 0.7},
    "weighted": {"reward_weights": [1.0, 0.5]},
    "groups-of-8": {"num_generations": 8},
    "groups-of-2": {"num_generations": 2},
    "one-pass": {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 16},
    "full-two-iterations-normalised": {
        "lora": False,
        "num_iterations": 2,
        "normalize_advantages": True,
    },
    "bf16": {"bf16": True},
    "bf16-weights": {"dtype": torch.bfloat16, "lora": False},
    "gmpo": {"trainer": GMPOTrainer, "num_iterations": 2, "epsilon": 0.4},
    "gmpo-full": {"trainer": GMPOTrainer, "lora": False, "beta": 0.0},
    "gmpo-cut-masked": {
        "trainer": GMPOTrainer,
        "mask_truncated_completions": True,
        "max_completion_length": 32,
        "num_iterations": 2,
    },
    "gmpo-bf16": {"trainer": GMPOTrainer, "num_iterations": 2, "bf16": True},
}
"""What healthy users ask for. `trainer` (else RLOO), `lora` and `dtype` are the script's, the rest
are arguments of the trainer."""


class ArithmeticMean(GMPOTrainer):
    """The loss of GRPO under the name of GMPO."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super(GMPOTrainer, self)._compute_loss(model, inputs)


class GroupBaseline(RLOOTrainer):
    """Less the mean of the whole group, its own reward in it."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        found["advantages"] *= 1 - 1 / self.num_generations
        return found


class OwnReward(RLOOTrainer):
    """Rewards as advantages: no baseline."""

    def _calculate_rewards(self, *args: Any) -> Any:
        self.paid_BF = super()._calculate_rewards(*args)
        return self.paid_BF

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        found["advantages"] = self.paid_BF.sum(1)
        return found


class NoKl(RLOOTrainer):
    """The KL is asked for and not in the reward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta = 0.0


class KlTurned(RLOOTrainer):
    """The KL is paid for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta = -self.beta


class SignTurned(RLOOTrainer):
    """What was rewarded becomes less likely."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return -super()._compute_loss(model, inputs)


class NotDivided(RLOOTrainer):
    """The passes of a step are summed."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs) * self.args.gradient_accumulation_steps


class OldOfAnotherRow(RLOOTrainer):
    """Old log-probs stand one row off."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        found["old_logps"] = found["old_logps"].roll(1)
        return found


class NeverOld(RLOOTrainer):
    """Every pass is compared with itself, so that nothing is ever clipped."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        heard = []
        name = "_get_per_token_logps_and_entropies"
        before = getattr(self, name)

        def hearing(*args: Any, **kwargs: Any) -> Any:
            found = before(*args, **kwargs)
            heard.append(found[0].detach())
            return found

        own = vars(self).get(name)
        vars(self)[name] = hearing
        try:
            with torch.no_grad():
                super()._compute_loss(model, inputs)
        finally:
            vars(self).pop(name) if own is None else vars(self).update({name: own})
        old_B = (heard[0] * inputs["completion_mask"]).sum(1)
        return super()._compute_loss(model, {**inputs, "old_logps": old_B})


FAULTS: dict[str, tuple[type[Any], str]] = {
    "group-baseline": (GroupBaseline, "advantages"),
    "no-baseline": (OwnReward, "advantages"),
    "kl-missing": (NoKl, "advantages"),
    "kl-turned": (KlTurned, "advantages"),
    "sign-turned": (SignTurned, "loss"),
    "passes-summed": (NotDivided, "loss"),
    "old-of-another-row": (OldOfAnotherRow, "log-probs"),
    "never-old": (NeverOld, "ratio and KL"),
    "gmpo-as-grpo": (ArithmeticMean, "ratio and KL"),
}
"""Name -> trainer and the stage that departs first."""


def script(setting: str) -> Script:
    """A healthy script."""
    made, changes = script_of("grpo"), dict(HEALTHY[setting])
    made.trainer = changes.pop("trainer", RLOOTrainer)
    made.lora, made.dtype = changes.pop("lora", True), changes.pop("dtype", made.dtype)
    asked = {name: value for name, value in made.asked.items() if name not in NOT_RLOO}
    made.asked = asked | changes
    return made


def healthy(setting: str) -> Any:
    """Its trainer."""
    return build(script(setting))


def faulty(name: str) -> Any:
    """A trainer with one of the defects."""
    made = script("gmpo" if issubclass(FAULTS[name][0], GMPOTrainer) else "rloo")
    made.trainer = FAULTS[name][0]
    return build(made)


def departing(trainer: Any) -> tuple[list[str], list[str]]:
    """Stages that depart, and stages that cannot be told."""
    subject = TrlSubject(trainer)
    with subject.standing_still():
        found = subject.departures()
    unknown = [stage for stage, one in found.items() if one.departs is None]
    return [stage for stage, one in found.items() if one.departs], unknown


def show(names: Sequence[str]) -> None:
    """One line each."""
    for name in (*HEALTHY, *FAULTS):
        if names and name not in names:
            continue
        planted = name in FAULTS
        stages, unknown = departing(faulty(name) if planted else healthy(name))
        wanted = f" (planted: {FAULTS[name][1]})" if planted else ""
        print(
            f"{name:32} departs: {', '.join(stages) or 'nowhere'}{wanted}"
            f"{'; cannot tell: ' + ', '.join(unknown) if unknown else ''}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    show(sys.argv[1:])
