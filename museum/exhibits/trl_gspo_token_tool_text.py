"""The trainer of GSPO-token has a loss of its own, which does not ask who wrote a token. What tools
answer is trained as if the policy had said it, and counts in the ratio of the whole rollout.
"""

from pathlib import Path
from typing import Any

from museum.exhibit import Exhibit
from museum.exhibits import trl_retokenised_tools as tools
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.8.0",
    good="1.10.0",
    beside=("jmespath==1.0.1",),
    lines="trl/experimental/gspo_token/grpo_trainer.py:75-124",
    expects=("H56", "H51", "H02", "H57"),
    later=6,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How much of the gradient with respect to log-probs is on what a tool wrote."""
    trainer = _trainer(folder)
    score, loss = trainer._get_per_token_logps_and_entropies, trainer._compute_loss
    kept: list[Any] = []
    foreign = total = 0.0

    def scoring(*args: Any, **kwargs: Any) -> Any:
        found = score(*args, **kwargs)
        if found[0].requires_grad:
            found[0].retain_grad()
            kept.append(found[0])
        return found

    def computing(model: Any, inputs: Any) -> Any:
        nonlocal foreign, total
        found = loss(model, inputs)
        found.backward(retain_graph=True)
        pull = kept.pop().grad.abs()
        foreign += float(pull[(inputs["tool_mask"] == 0) & (inputs["completion_mask"] == 1)].sum())
        total += float(pull.sum())
        trainer.model.zero_grad()
        return found

    trainer._get_per_token_logps_and_entropies, trainer._compute_loss = scoring, computing
    trainer.train()
    return f"{foreign / max(total, 1e-12):.1%} of the loss's gradient is on what tools wrote"


def _trainer(folder: Path) -> Any:
    import trl
    from trl.experimental.gspo_token import GRPOTrainer

    trl.GSPOTrainer, trl.GSPOConfig = GRPOTrainer, trl.GRPOConfig  # where the lab looks for it
    return tools.trainer(
        folder,
        tools.parts(),
        algorithm="GSPO",
        importance_sampling_level="sequence_token",
        loss_type="grpo",
        temperature=1.2,
    )
