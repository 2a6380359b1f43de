"""With `loss_type="luspo"` each row's mean over all columns, padding among them, is multiplied by
its length, instead of summing the tokens that are its own. The shorter a completion beside the
longest of its batch, the less its tokens weigh, and padding is trained.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.9.2",
    good="1.10.0",
    lines="trl/trainer/grpo_trainer.py:3146-3148",
    expects=("H56", "H57", "H35"),
    later=2,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How much of the gradient with respect to log-probs is on padding."""
    trainer = _trainer(folder)
    score, loss, shares = trainer._get_per_token_logps_and_entropies, trainer._compute_loss, []
    kept: list[Any] = []

    def scoring(*args: Any, **kwargs: Any) -> Any:
        found = score(*args, **kwargs)
        if found[0].requires_grad:
            found[0].retain_grad()
            kept.append(found[0])
        return found

    def computing(model: Any, inputs: Any) -> Any:
        found = loss(model, inputs)
        found.backward(retain_graph=True)
        pull, pad = kept.pop().grad.abs(), inputs["completion_mask"] == 0
        shares.append(float(pull[pad].sum() / pull.sum().clamp(min=1e-12)))
        trainer.model.zero_grad()
        return found

    trainer._get_per_token_logps_and_entropies, trainer._compute_loss = scoring, computing
    trainer.train()
    return f"{max(shares):.1%} of the loss's gradient is on padding"


def _trainer(folder: Path) -> Any:
    return lab.trainer(folder, loss_type="luspo")
