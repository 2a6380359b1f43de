"""Prompts are repeated by a sampler, and a dataset that is read as a stream has none. Every row of
a generation is another question, and their rewards are compared with each other as if they were
answers to one.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="0.16.1",
    good="1.16.0",  # from 0.17 on streams are refused, and from 1.9 on they are repeated
    beside=TRANSFORMERS_4,
    lines="trl/trainer/grpo_trainer.py:514-538",
    expects=("H33",),
    later=6,
)
STEPS = 6


def run(folder: Path) -> dict[str, Any]:
    return recorded(_trainer(folder, lab.right), folder)  # a checkup needs TRL 0.19


def symptom(folder: Path) -> str:
    """Of the groups that rewards are compared in, those with more than one question."""
    mixed = count = 0

    def asked(prompts: list[Any], **given: Any) -> list[float]:
        nonlocal mixed, count
        said = [str(one) for one in prompts]
        groups = [set(said[k : k + GROUP]) for k in range(0, len(said), GROUP)]
        mixed, count = mixed + sum(len(one) > 1 for one in groups), count + len(groups)
        return lab.right(**given)

    _trainer(folder, asked).train()
    return f"{mixed} of {count} groups are answers to several questions"


GROUP = 4


def _trainer(folder: Path, reward: Any) -> Any:
    import trl
    from datasets import Dataset

    model, tokenizer = lab.parts()
    streamed = {"accelerator_config": {"dispatch_batches": False}, "max_steps": STEPS}
    return trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=lab.arguments(folder, "GRPO", num_generations=GROUP, **streamed),
        train_dataset=Dataset.from_list(lab.rows()).to_iterable_dataset(),
        reward_funcs=[reward],
    )
