"""The text of a turn while it is being written, and where a stop string ends it.

A token may hold half of a character, and some tokenizers write a blank only between two tokens. So
new text is what a decoded window gained over the same window without the new token, and a window
that ends in half a character waits for the rest.
"""

from collections.abc import Sequence
from typing import Any

HALF = "�"


class Spelling:
    """Reads a turn token by token."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self.text = ""
        """All that can be read so far, cut in front of a stop string."""
        self.stop: str | None = None
        """The stop string that was written, if one was."""
        self._tokenizer = tokenizer
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._ids: list[int] = []
        self._window = self._read = 0
        """Where the decoded window starts, and up to where its text is taken already."""

    def push(self, id: int) -> None:
        """Take one more token."""
        self._ids.append(id)
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if len(after) > len(before) and not after.endswith(HALF):
            self._window, self._read = self._read, len(self._ids)
            self._append(after[len(before) :])

    def finish(self) -> None:
        """No token follows: half a character is shown as it is."""
        before = self._decode(self._ids[self._window : self._read])
        self._append(self._decode(self._ids[self._window :])[len(before) :])

    @property
    def certain(self) -> int:
        """Characters that no stop string can take back."""
        return len(self.text) if self.stop else max(0, len(self.text) - max(0, self._longest - 1))

    def _append(self, new: str) -> None:
        searched = max(0, len(self.text) - self._longest + 1)
        self.text += new
        found = [(at, stop) for stop in self._stops if (at := self.text.find(stop, searched)) >= 0]
        if found:
            at, self.stop = min(found)
            self.text = self.text[:at]

    def _decode(self, ids: list[int]) -> str:
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
