"""A reward model is read at the token before the first padding. Where the end of a turn is also the
padding, as in a tokenizer without one of its own, that is the end of the first turn: a score of how
the conversation begins, and the same for all completions.
"""

from pathlib import Path
from typing import Any

from museum import lab
from museum.bases import OLD_HUB
from museum.exhibit import Exhibit
from museum.play import recorded

EXHIBIT = Exhibit(
    bad="4.48.3",
    good="4.49.0",
    beside=("tokenizers==0.21.4", *OLD_HUB, "trl==0.17.0"),
    lines="transformers/models/llama/modeling_llama.py:948-949",
    expects=("H32", "H52", "H05", "H39"),
    later=5,
)


STEPS = 6


def run(folder: Path) -> dict[str, Any]:
    model, tokenizer = lab.parts()
    trainer = _trainer(folder, (model, tokenizer), judged(model.name_or_path))
    return recorded(trainer, folder)  # a checkup needs a later TRL


def symptom(folder: Path) -> str:
    """Of the groups whose completions differ, those in which no score does."""
    model, tokenizer = lab.parts()
    judge, alike, count = judged(model.name_or_path), 0, 0

    def counting(prompts: list[Any], completions: list[Any], **given: Any) -> list[float]:
        nonlocal alike, count
        scores = judge(prompts, completions, **given)
        for k in range(0, len(scores), trainer.num_generations):
            own = slice(k, k + trainer.num_generations)
            differ = any(one != completions[k] for one in completions[own])
            count += differ
            alike += differ and max(scores[own]) - min(scores[own]) < 1e-5
        return scores

    trainer = _trainer(folder, (model, tokenizer), counting)
    trainer.train()
    return f"in {alike} of {count} groups of different completions all have the same score"


def judged(path: str) -> Any:
    """A reward function that asks a model, as one writes it oneself."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    reader = AutoTokenizer.from_pretrained(path)
    reader.pad_token = reader.eos_token  # as many do whose tokenizer has none
    judge = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1).eval()
    judge.config.pad_token_id = reader.pad_token_id

    @torch.no_grad()
    def judged(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        chats = [asked + said for asked, said in zip(prompts, completions, strict=True)]
        texts = [reader.apply_chat_template(one, tokenize=False) for one in chats]
        read = reader(texts, padding=True, return_tensors="pt")
        return [float(one) for one in judge(**read).logits[:, 0]]

    return judged


def _trainer(folder: Path, parts: tuple[Any, Any], reward: Any) -> Any:
    return lab.trainer(folder, parts=parts, rewards=[reward], max_steps=STEPS)
