"""`max_tool_calling_iterations=0` is taken for not given, and the limit is then the largest number
there is. Where no tool was to be called, every call of the model is answered and it goes on.
"""

from pathlib import Path
from typing import Any

from museum.exhibit import Exhibit
from museum.exhibits import trl_retokenised_tools as tools
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.8.0",
    good="1.9.0",
    beside=("jmespath==1.0.1",),
    lines="trl/trainer/grpo_trainer.py:709",
    expects=("H42", "H49", "H50"),
    later=3,
)


def wordy(completions: list[Any], **_: Any) -> list[float]:
    """For what is said and called, so that groups differ also where no tool answers."""
    own = [[one for one in turns if one["role"] == "assistant"] for turns in completions]
    return [len(str(turns)) / 1000 for turns in own]


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    answered, count = 0, 0

    def counting(completions: list[Any], **_: Any) -> list[float]:
        nonlocal answered, count
        answered += sum(message["role"] == "tool" for one in completions for message in one)
        count += len(completions)
        return wordy(completions)

    trainer = _trainer(folder, counting)
    trainer.train()
    return f"{answered} calls answered in {count} rollouts"


def _trainer(folder: Path, reward: Any = wordy) -> Any:
    given = {"rewards": [reward], "max_tool_calling_iterations": 0, "temperature": 1.2}
    return tools.trainer(folder, tools.parts(), **given)
