"""What the scripts share that let a framework's own loop write its files on a CPU.

The model and the task (repeat a letter) are those of `tinker_api.py`.
"""

import importlib.machinery
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import torch

sys.path.append(str(Path(__file__).parent))

from tinker_api import END, LONGEST, PAD, PROMPTS, VOCABULARY, _prompt

EVENTS = "events.out.tfevents.1.host.0"
"""A name of a TensorBoard file that does not tell the machine."""


class Absent:
    """An import of these packages gives an empty module: nothing in them is asked to work."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name, __path__=[], __file__=None, __version__="0")
        module.__name__, module.__spec__ = spec.name, spec
        return module

    def exec_module(self, module) -> None: ...


def without(*names: str) -> None:
    """Let packages that are not installed be imported."""
    sys.meta_path.append(Absent(names))


def prompts(draw: random.Random, count: int = PROMPTS) -> list[list[int]]:
    return [_prompt(draw) for _ in range(count)]


def text(ids: Sequence[int]) -> str:
    return " ".join(VOCABULARY[one] for one in ids)


def gold(prompt: Sequence[int]) -> str:
    """The letter that is to be repeated."""
    return VOCABULARY[prompt[-1]]


def reward(said: str, answer: str) -> float:
    return float(said.split()[:1] == [answer])


@torch.no_grad()
def sampled(model, asked: Sequence[Sequence[int]]) -> list[tuple[list[int], list[float]]]:
    """An answer and its log-probs for each of these prompts, which are equally long."""
    ids = torch.tensor([list(one) for one in asked])
    start, logps = ids.shape[1], []
    for _ in range(LONGEST):
        chances = model(input_ids=ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(chances.exp(), 1)
        logps.append(chances.gather(1, token))
        ids = torch.cat([ids, token], dim=1)
    found = zip(ids[:, start:].tolist(), torch.cat(logps, 1).tolist(), strict=True)
    return [_ended(own, values) for own, values in found]


def _ended(own: list[int], values: list[float]) -> tuple[list[int], list[float]]:
    size = own.index(END) + 1 if END in own else len(own)
    return own[:size], values[:size]


def chances_of(model, ids, seen=None):
    """The log-prob of every token but the first, and the entropy at each; padding may be on
    either side."""
    seen = (ids != PAD).long() if seen is None else seen.long()
    places = (seen.cumsum(-1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=seen, position_ids=places).logits[:, :-1]
    chances = out.log_softmax(-1)
    entropy = -(chances.exp() * chances).sum(-1)
    return chances.gather(2, ids[:, 1:, None])[..., 0], entropy
