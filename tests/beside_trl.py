"""A checkup, a recorded training and a watched loop beside TRL, without any extra of flatline.

    python tests/beside_trl.py [--plain]

`--plain` hides all that is installed and that neither flatline's base nor TRL, PEFT or torch asks
for: what a clean environment would not have.
"""

import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).parents[1]
ASKED = ("flatline-rl", "trl", "peft", "torch")


class Plain(PathFinder):
    """Finds what is not hidden."""

    hidden: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in cls.hidden:
            return None
        return PathFinder.find_spec(fullname, path, target)


def hide() -> None:
    """From now on only a plain installation can be imported."""
    wanted = set(_wanted())
    for package, owners in metadata.packages_distributions().items():
        if package != "flatline" and not wanted & set(map(_plainly, owners)):
            Plain.hidden.add(package)
    sys.meta_path[sys.meta_path.index(PathFinder)] = Plain


def _wanted() -> Iterator[str]:
    from packaging.requirements import Requirement

    waiting, seen = list(ASKED), set[str]()
    while waiting:
        name = _plainly(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        yield name
        try:
            needs = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:  # of another system
            continue
        waiting += [
            one.name for one in needs if not one.marker or one.marker.evaluate({"extra": ""})
        ]


def _plainly(name: str) -> str:
    return name.lower().replace("_", "-")


def recorded(folder: Path) -> None:
    """What people do with a trainer of TRL's."""
    sys.path.append(str(ROOT / "benchmarks"))
    import foreign_script

    import flatline

    foreign_script.ADAPTED = ["q_proj", "v_proj"]
    script = foreign_script.script_of("grpo")
    script.asked["max_steps"] = 2
    print(flatline.checkup(foreign_script.build(script)))
    trainer = foreign_script.build(script)
    flatline.attach(trainer, folder / "attached")
    trainer.train()
    report = flatline.diagnose(folder / "attached")
    print(report)
    assert len(report.findings) > 20


def watched(folder: Path) -> None:
    """A loop of somebody's own."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    import flatline

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=32, **sizes, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with flatline.watch(model, optimizer, folder / "watched"):
        for _ in range(3):
            model(input_ids=torch.arange(8)[None]).logits.logsumexp(-1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(flatline.Trace.open(folder / "watched").steps) == 3
    print(flatline.diagnose(folder / "watched"))


if __name__ == "__main__":
    if "--plain" in sys.argv:
        hide()
    with tempfile.TemporaryDirectory() as name:
        watched(Path(name))
        recorded(Path(name))
    extras = ("scipy", "duckdb", "starlette", "uvicorn", "bs4", "tensorboardX")
    print("loaded:", [one for one in extras if one in sys.modules])
