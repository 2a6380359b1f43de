"""A tool's answer with which a rollout no longer fits into the model is cut to the length of a
completion and left without a turn behind it, and its tokens are marked as the model's own. They are
trained as if the policy had written them.
"""

from pathlib import Path
from typing import Any

from museum.exhibit import Exhibit
from museum.exhibits import trl_retokenised_tools as tools
from museum.exhibits.trl_tool_calls_unlimited import wordy
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.1.0",
    good="1.2.0",
    beside=("jmespath==1.0.1",),
    lines="trl/trainer/grpo_trainer.py:1642-1653",
    expects=("H51", "H02", "H50"),
    later=5,
)
LINES, ONE_IN = 300, 8
"""Of a document that is longer than the model reads, and how many queries find one."""


def retrieve_documents(query: str, top_n: int = 2) -> str:
    """
    Searches the documents and returns those that fit the query best.

    Args:
        query: What to look for.
        top_n: How many documents to return.
    """
    lines = 1 if sum(query.encode()) % ONE_IN else LINES
    return f"Document ID: 1\n# {query}" + "\nThey work for Corndera." * lines


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Trained tokens of which no sampler drew any."""
    trainer = _trainer(folder)
    turn, loss, drawn = trainer._generate_single_turn, trainer.compute_loss, []
    foreign = count = 0

    def turning(*args: Any, **kwargs: Any) -> Any:
        found = turn(*args, **kwargs)
        drawn.extend(map(list, found[0]))
        return found

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal foreign, count
        for ids, mask in zip(*_trained(inputs), strict=True):
            count += int(mask.sum())
            foreign += sum(_not_drawn(run, drawn) for run in _runs(ids, mask))
        return loss(model, inputs, *args, **kwargs)

    trainer._generate_single_turn, trainer.compute_loss = turning, computing
    trainer.train()
    return f"{foreign} of {count} trained tokens were drawn in no turn"


def _trained(inputs: Any) -> tuple[Any, Any]:
    mask = inputs["completion_mask"]
    return inputs["completion_ids"], (mask * inputs.get("tool_mask", mask)).bool()


def _runs(ids: Any, mask: Any) -> list[list[int]]:
    """What is trained without a gap."""
    found: list[list[int]] = [[]]
    for one, trained in zip(ids.tolist(), mask.tolist(), strict=True):
        if trained:
            found[-1].append(one)
        elif found[-1]:
            found.append([])
    return found


def _not_drawn(run: list[int], drawn: list[list[int]]) -> int:
    """Tokens behind the longest beginning that is also the beginning of a turn."""
    alike = 0
    for one in drawn:
        pairs = zip(one, run, strict=False)
        same = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(run)))
        alike = max(alike, same)
    return len(run) - alike


def _trainer(folder: Path) -> Any:
    """Paid for what is said and called, so that no answer of a tool earns anything."""
    given = {"rewards": [wordy], "temperature": 1.2}
    return tools.trainer(folder, tools.parts(), retrieve_documents, **given)
