"""Advice in the words of the run it is about.

A `fix` names a setting as `{beta}`. What stands there in the end depends on who trains: TRL's
argument for a trainer of TRL, flatline's flag for a run of `flatline train`, the name that the
configuration of a log has, and plain words where no name is known.
"""

import re
from collections.abc import Mapping
from typing import Any

PLAIN: Mapping[str, str] = {
    "adam_epsilon": "the epsilon of Adam",
    "beta": "the weight of the KL term",
    "chat_template": "the chat template",
    "checkup": "measuring one step",
    "disable_dropout": "the p of its layers",
    "epsilon": "the clip of the ratio",
    "learning_rate": "the learning rate",
    "lora_dropout": "the p of their layers",
    "loss_type": "the kind of loss",
    "mask_truncated_completions": "the masking of cut completions",
    "max_completion_length": "the limit of completion tokens",
    "max_grad_norm": "the limit of the gradient norm",
    "max_prompt_length": "the limit of prompt tokens",
    "max_turns": "the limit of turns",
    "num_iterations": "the number of updates per batch",
    "scale_rewards": "the scaling of the rewards",
    "warmup_steps": "the warm-up of the learning rate",
    "vllm_importance_sampling_mode": "the kind of importance weights",
}
"""Every name that a fix may have, in words that fit any trainer."""
TRL: Mapping[str, str] = {
    name: f"`{name}`"
    for name in PLAIN
    if name not in ("chat_template", "max_prompt_length")  # TRL has no such arguments
} | {"max_turns": "`max_tool_calling_iterations`", "checkup": "`flatline.checkup(trainer)`"}
FLATLINE: Mapping[str, str] = {
    "beta": "`--kl-beta`",
    "chat_template": "`--chat-template`",
    "checkup": "`flatline checkup`",
    "epsilon": "`--epsilon`",
    "learning_rate": "`--learning-rate`",
    "lora_dropout": "`--lora-dropout`",
    "loss_type": "`--loss-type`",
    "max_completion_length": "`--max-new-tokens`",
    "max_grad_norm": "`--max-grad-norm`",
    "max_prompt_length": "`--max-prompt-length`",
    "max_turns": "`--max-turns`",
    "num_iterations": "`--num-iterations`",
    "scale_rewards": "`--scale-rewards`",
    "warmup_steps": "`--warmup-steps`",
}
TRL_METRICS = frozenset(
    ("completions/clipped_ratio", "completions/mean_length", "frac_reward_zero_std")
)
_NAME = re.compile(r"\{(\w+)\}")


def names_of(at: Any) -> Mapping[str, str]:
    """What the settings are called where a hypothesis looked: in a live trainer, or in a trace."""
    run = getattr(at, "run", None)
    if run is None:
        return FLATLINE if getattr(at, "ours", False) else TRL
    if run.get("requested"):
        return FLATLINE
    if run.get("source") == "attach":
        return TRL
    own = {name: f"`{own}`" for name, own in (run.get("setting_names") or {}).items()}
    return {**TRL, **own} if _of_trl(run) else own


def _of_trl(run: Mapping[str, Any]) -> bool:
    """Whether the metrics of a log have names that only TRL gives them."""
    return not TRL_METRICS.isdisjoint(map(str, (run.get("aliases") or {}).values()))


def worded(text: str, names: Mapping[str, str]) -> str:
    """The text with every name as the run has it."""
    return _NAME.sub(lambda found: names.get(found[1]) or PLAIN[found[1]], text)
