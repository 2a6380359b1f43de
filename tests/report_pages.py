"""Helpers for tests of pages: runs on disk, and what a browser would make of a page."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from flatline.trace import Recorder
from tests.traces import healthy_rows, run_facts

HOSTILE = "</script><img src=x onerror=alert(1)>{{7*7}}\x1b[31m\u202etxt.exe"
"""Ends a script, runs one, is a template, colours a terminal and turns text around."""


class Page(HTMLParser):
    """The elements and the visible text of a page, as a browser reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.blocks: dict[str, Any] = {}
        self.scripts = 0
        self._inside: str | None = None
        self._block: str | None = None
        self._raw = ""
        self.feed(html.encode().decode())  # a Markup would escape what is added to it

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside, self._raw = tag, ""
            kind = dict(attrs).get("type")
            self._block = dict(attrs).get("id") if kind == "application/json" else None
            self.scripts += tag == "script" and kind is None

    def handle_endtag(self, tag):
        if tag == self._inside:
            if self._block:
                self.blocks[self._block] = json.loads(self._raw)
            self._inside = None

    def handle_data(self, data):
        if self._inside:
            self._raw += data
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def figures(self) -> dict[str, Any]:
        return self.blocks["chart-data"]


def record(folder: Path, rows: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run on disk, closed; the rows of a healthy run where none are given."""
    recorder = begin(folder, rows, **settings)
    recorder.close()
    return folder


def begin(folder: Path, rows: dict[str, Any] | None = None, **settings: Any) -> Recorder:
    """A run on disk that is still being written."""
    rows = rows or healthy_rows()
    recorder = Recorder(folder, settings={**run_facts()["settings"], **settings}, seed=0)
    recorder.log_rollouts(rows["rollouts"])
    recorder.log_tokens(rows["tokens"])
    recorder.log_weights(rows["weights"])
    recorder.log_vocabulary({one["id"]: one["text"] for one in rows["vocabulary"]})
    for step in rows["steps"]:
        recorder.log_step(**step)
    return recorder
