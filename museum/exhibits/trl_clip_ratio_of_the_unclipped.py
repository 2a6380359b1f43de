"""A token counts as clipped where the term without the clip is the smaller one, which is where the
clip does nothing. The logged `clip_ratio` is that of the other tokens; training itself is right.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4_51
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="0.16.1",
    good="0.17.0",
    beside=TRANSFORMERS_4_51,
    lines="trl/trainer/grpo_trainer.py:941",
    expects=("H48",),
    later=3,
)
BOUND = 0.2


def run(folder: Path) -> dict[str, Any]:
    return recorded(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """The logged share beside that of tokens whose loss the clip really holds back."""
    trainer = _trainer(folder)
    score, loss, shares = trainer._get_per_token_logps, trainer.compute_loss, []
    seen: Any = None

    def scoring(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen = score(*args, **kwargs)
        return seen

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found = loss(model, inputs, *args, **kwargs)
        old = inputs["old_per_token_logps"]
        ratio = (seen - (seen if old is None else old)).exp().detach()
        gain, mask = inputs["advantages"][:, None], inputs["completion_mask"]
        held = ((ratio > 1 + BOUND) & (gain > 0)) | ((ratio < 1 - BOUND) & (gain < 0))
        shares.append(float((held * mask).sum() / mask.sum()))
        return found

    trainer._get_per_token_logps, trainer.compute_loss = scoring, computing
    trainer.train()
    names = ("clip_ratio", "clip_ratio/region_mean")
    logged = [row[name] for row in trainer.state.log_history for name in names if name in row]
    pairs = zip(shares[::2], shares[1::2], strict=True)
    true = [(first + second) / 2 for first, second in pairs]
    return f"logged {_mean(logged):.4f} on average, clipped {_mean(true):.4f}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _trainer(folder: Path) -> Any:
    """Several updates on the same rollouts, so that ratios leave their bounds."""
    return lab.trainer(folder, num_iterations=3, max_steps=6, learning_rate=1e-3, epsilon=BOUND)
