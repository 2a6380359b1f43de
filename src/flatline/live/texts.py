"""Token ids as text, and as the name of a prompt."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

OPENING_TAG = re.compile(r"<([A-Za-z][\w-]{0,30})>\s*\Z")
"""An opening tag that a prompt ends with: the template begins the answer with it. Marks of turns
have bars or brackets in most templates."""

MARKED = re.compile(r"<answer>\s*([^<]*?)\s*</answer>|\\boxed\{([^{}]*)\}|####\s*(\S+)")
"""One answer, marked."""


def marked_answer(text: str) -> str | None:
    """The one answer that a text marks; None where it marks none or several."""
    found = list(MARKED.finditer(text))
    return found[0].group(found[0].lastindex or 1) if len(found) == 1 else None


class Texts:
    """Decodes ids in bulk, and each sequence once: while the step is still under way."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[bytes, str] = {}

    def learn(self, sequences: Iterable[np.ndarray]) -> list[str]:
        """The text of each; those that were not seen since `forget` are decoded."""
        pairs = [(ids.tobytes(), ids) for ids in sequences]
        fresh = {key: ids for key, ids in pairs if key not in self._known}
        if fresh:
            # As arrays: of a list, the tokenizer would look at the type of every number.
            texts = self._tokenizer.batch_decode(list(fresh.values()))
            self._known.update(zip(fresh, texts, strict=True))
        return [self._known[key] for key, _ in pairs]

    def of(self, ids: np.ndarray) -> str:
        return self._known[ids.tobytes()]

    def forget(self) -> None:
        """Later steps have other texts."""
        self._known.clear()


class Vocabulary:
    """Gives the text of every id once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: set[int] = set()

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows for the ids of these token rows that were not seen before."""
        names = ("prompt_ids", "ids", "sampled_prompt_ids", "sampled_ids")
        arrays = [row[name] for row in rows for name in names if row.get(name) is not None]
        if not arrays:
            return []
        fresh = sorted(set(np.unique(np.concatenate(arrays)).tolist()) - self._known)
        self._known.update(fresh)
        if not fresh:
            return []
        texts = self._tokenizer.batch_decode([[id] for id in fresh])
        return [{"id": id, "text": text} for id, text in zip(fresh, texts, strict=True)]


def hashed(ids: np.ndarray) -> str:
    """The name of a prompt that has no other."""
    return hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=6).hexdigest()
