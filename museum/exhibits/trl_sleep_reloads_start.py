"""With sleep mode vLLM is sent the trained weights, and is then told to load its checkpoint again
before it samples. The engine samples with the weights of the start for the whole run.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="1.9.2",
    good="1.10.0",
    stands_in="vLLM: samples with what it was sent or loaded last",
    lines="trl/generation/vllm_generation.py:540-548",
    expects=("H06", "H17", "H59"),
    later=3,
)


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """How far the engine's weights are from those that are trained, when it samples."""
    trainer = _trainer(folder)
    engine, gaps = trainer.vllm_generation.llm, []
    generate = engine.generate

    def generating(*args: Any, **kwargs: Any) -> Any:
        own = engine.model.state_dict()
        pairs = [(one, own[name]) for name, one in trainer.model.named_parameters()]
        gaps.append(max(float((one - other).abs().max()) for one, other in pairs))
        return generate(*args, **kwargs)

    engine.generate = generating
    trainer.train()
    return f"weights of engine and trainer differ by up to {', '.join(f'{g:.4f}' for g in gaps)}"


def _trainer(folder: Path) -> Any:
    import vllm

    vllm.RequestOutput = None
    given = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
    return lab.trainer(folder, temperature=1.0, max_steps=5, learning_rate=2e-3, **given)
