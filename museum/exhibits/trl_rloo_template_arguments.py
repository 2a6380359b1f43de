"""RLOO lets vLLM in its own process render the chats and does not hand on `chat_template_kwargs`.
What the template was to be told, here not to let the model think first, is heard in no prompt.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from museum import lab
from museum.bases import TRANSFORMERS_4
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.26.2",
    good="0.27.0",
    beside=TRANSFORMERS_4,
    stands_in="vLLM: renders chats with what it is told and samples with what it is sent",
    lines="trl/trainer/rloo_trainer.py:1112",
    expects=("H49", "H10"),
    later=4,
)
THINKS = "<think>"


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder), folder)


def symptom(folder: Path) -> str:
    """Prompts of trained rows that end as the template was told not to let them."""
    trainer = _trainer(folder)
    loss, begun, count = trainer.compute_loss, 0, 0

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun, count
        said = trainer.processing_class.batch_decode(inputs["prompt_ids"])
        begun, count = begun + sum(THINKS in one for one in said), count + len(said)
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{begun} of {count} prompts begin the thought that was switched off"


def _trainer(folder: Path) -> Any:
    import vllm

    model, tokenizer = lab.parts()
    own, asked = "assistant\\n'", "enable_thinking is not defined or enable_thinking"
    thought = f"assistant\\n' + ('{THINKS}\\n' if {asked} else '')"
    tokenizer.chat_template = tokenizer.chat_template.replace(own, thought)

    class Engine(vllm.LLM):  # type: ignore[misc, name-defined]
        def chat(
            self,
            messages: Any,
            sampling_params: Any = None,
            chat_template_kwargs: Any = None,
            **_: Any,
        ) -> Any:
            given = {"tokenize": False, "add_generation_prompt": True}
            given |= chat_template_kwargs or {}
            texts = [tokenizer.apply_chat_template(_plain(one), **given) for one in messages]
            return self.generate(texts, sampling_params)

    vllm.LLM = Engine
    _patched()
    return lab.trainer(
        folder,
        parts=(model, tokenizer),
        algorithm="RLOO",
        use_vllm=True,
        vllm_mode="colocate",
        temperature=1.0,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,  # with more, trl_rloo_steps_twice
        chat_template_kwargs={"enable_thinking": False},
    )


def _patched() -> None:
    """What TRL 0.26 mends in vLLM as soon as it is imported, and is not in the stand-in."""
    names = ("model_executor", "model_executor.model_loader", "transformers_utils")
    last = ("model_executor.model_loader.weight_utils", "transformers_utils.tokenizer")
    for name in (*names, *last):
        above, _, own = f"vllm.{name}".rpartition(".")
        made = sys.modules[f"{above}.{own}"] = ModuleType(f"{above}.{own}")
        setattr(sys.modules[above], own, made)


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """vLLM reads contents in parts as the text that they are."""
    return [one | {"content": _text(one["content"])} for one in messages]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
