"""A function of one's own for whole rollouts is asked where vLLM samples, and nowhere else. Without
vLLM it is taken and never called: the policy is trained on single answers, and the second turn that
it was to learn is never there.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.exhibit import Exhibit
from museum.play import looked

EXHIBIT = Exhibit(
    bad="0.29.0",
    good="1.16.0",
    lines="trl/trainer/grpo_trainer.py:1219-1330",
    expects=("H50", "H49", "H07"),
    later=6,
)
ASKED_AGAIN = "\n<|im_start|>user\nCheck your answer.<|im_end|>\n<|im_start|>assistant\n"
TURN = 64
"""Tokens at most; two turns and what is between them are less than a completion may have."""


def run(folder: Path) -> dict[str, Any]:
    return looked(_trainer(folder, twice), folder)


def symptom(folder: Path) -> str:
    made = trained = 0

    def counting(prompts: Any, trainer: Any) -> Any:
        nonlocal made
        made += len(prompts)
        return twice(prompts, trainer)

    trainer = _trainer(folder, counting)
    loss = trainer.compute_loss

    def computing(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal trained
        trained += len(inputs["completion_ids"])
        return loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = computing
    trainer.train()
    return f"{made} of {trained} trained rollouts come from the function that was given"


def twice(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Rollouts in which the policy is asked to check what it said."""
    tokenizer = trainer.processing_class
    given = {"tokenize": False, "add_generation_prompt": True}
    texts = [tokenizer.apply_chat_template(one, **given) for one in prompts]
    asked = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    again = tokenizer(ASKED_AGAIN, add_special_tokens=False)["input_ids"]
    first = _sampled(asked, trainer)
    before = [said + again for said in first]
    pairs = zip(asked, before, strict=True)
    second = _sampled([prompt + more for prompt, more in pairs], trainer)
    turns = list(zip(first, second, strict=True))
    return {
        "prompt_ids": asked,
        "completion_ids": [one + again + other for one, other in turns],
        "env_mask": [[1] * len(one) + [0] * len(again) + [1] * len(other) for one, other in turns],
        "logprobs": None,
    }


def _sampled(asked: list[list[int]], trainer: Any) -> list[list[int]]:
    """Up to the end of a turn."""
    import torch

    tokenizer, longest = trainer.processing_class, max(map(len, asked))
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (longest - len(one)) + one for one in asked])
    seen = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in asked])
    model = trainer.accelerator.unwrap_model(trainer.model)
    given = {"generation_config": trainer.generation_config, "max_new_tokens": TURN}
    with torch.no_grad():
        found = model.generate(ids, attention_mask=seen, **given)
    said = found[:, longest:].tolist()
    return [one[: one.index(end) + 1] if end in one else one for one in said]


def _trainer(folder: Path, rollouts: Any) -> Any:
    model, tokenizer = lab.parts()
    tokenizer.padding_side = "left"  # right is a defect of its own in 0.29.0, trl_right_padding
    more = {"rollout_func": rollouts}
    return lab.trainer(folder, parts=(model, tokenizer), more=more, max_completion_length=160)
