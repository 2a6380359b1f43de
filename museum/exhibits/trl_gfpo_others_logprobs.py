"""GFPO samples large groups and trains on the rows of each that a filter keeps, but the log-probs
from before the updates are not filtered with them. Each row is compared with those of another.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.24.0",
    good="0.25.0",
    beside=TRANSFORMERS_4,
    lines="trl/experimental/gfpo/gfpo_trainer.py:266-273",
    expects=("H54", "H55", "H33"),
    later=4,
)
SAMPLED, KEPT = 8, 4


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Old log-probs beside those of the policy, before anything is updated."""
    trainer = _trainer(folder)
    score, loss, gaps = trainer._get_per_token_logps_and_entropies, trainer.compute_loss, []
    seen: Any = None

    def scoring(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        found = score(*args, **kwargs)
        seen = found[0].detach()
        return found

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found = loss(model, inputs, *args, **kwargs)
        if trainer.state.global_step == 0:
            apart = (seen - inputs["old_per_token_logps"]).abs()
            gaps.append(float(apart[inputs["completion_mask"].bool()].mean()))
        return found

    trainer._get_per_token_logps_and_entropies, trainer.compute_loss = scoring, computing
    trainer.train()
    said = ", ".join(f"{one:.2g}" for one in gaps)
    return f"old log-probs are {said} nat per token from the policy's in the passes of step 1"


def short_first(group_completions: list[Any], **_: Any) -> list[list[float]]:
    """What GFPO is for: the shorter ones are kept."""
    return [[-float(len(one[-1]["content"])) for one in group] for group in group_completions]


def _trainer(folder: Path) -> Any:
    import trl
    from trl.experimental.gfpo import GFPOConfig, GFPOTrainer

    trl.GFPOTrainer, trl.GFPOConfig = GFPOTrainer, GFPOConfig  # where the lab looks for it
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # right is a defect of its own in 0.25.0, trl_right_padding
    return lab.trainer(
        folder,
        parts=(model, tokenizer),
        algorithm="GFPO",
        num_generations=SAMPLED,
        num_remains_in_group=KEPT,
        num_iterations=2,
        rewards=[lab.right, lab.short],
        max_steps=4,
        more={"group_filter_func": short_first},
    )
