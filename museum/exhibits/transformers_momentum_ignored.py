"""What `optim_args` asks of SGD is not handed to it: there is no momentum. With nine tenths of it
asked for, the weights go a tenth of the way that they should, and the log shows nothing of it.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_5_5
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="5.2.0",  # both releases have transformers_accumulated_twice, which takes several passes
    good="5.3.0",
    beside=("trl==1.16.0", *TRANSFORMERS_5_5),
    lines="transformers/trainer_optimizer.py:315-317",
    expects=("H58",),
    later=5,
)
RATE = 0.05


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How far weights move, beside how far the gradient of the step alone takes them."""
    from transformers import TrainerCallback

    trainer = _trainer(folder)
    ways: list[float] = []
    before: list[Any] = []

    class Ways(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            before[:] = [(one.detach().clone(), one.grad.clone()) for one in _trained(model)]

        def on_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            pairs = list(zip(_trained(model), before, strict=True))
            moved = sum(float((one.detach() - was).square().sum()) for one, (was, _) in pairs)
            alone = sum(float(grad.square().sum()) for _, grad in before)
            ways.append((moved / alone) ** 0.5 / RATE)

    trainer.add_callback(Ways())
    trainer.train()
    said = ", ".join(f"{one:.2f}" for one in ways)
    return f"steps are {said} times as long as rate and gradient alone make them"


def _trained(model: Any) -> list[Any]:
    return [one for one in model.parameters() if one.requires_grad]


def _trainer(folder: Path) -> Any:
    return lab.trainer(
        folder,
        optim="sgd",
        optim_args="momentum=0.9",
        learning_rate=RATE,
        max_steps=6,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
    )
