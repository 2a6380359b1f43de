"""Rows in the official MuSiQue schema, small enough to read."""

import json
from pathlib import Path
from typing import Any

REAL = Path(__file__).parents[2] / "shared" / "data" / "musique"
"""Real files where they are at hand; tests that need them skip where they are not."""


def row(**changes: Any) -> dict[str, Any]:
    """Two hops over paragraphs 1 and 3, with distractors 0, 2 and 4."""
    base: dict[str, Any] = {
        "id": "2hop__1_2",
        "question": "Where was the director of Velbara born?",
        "answer": "Sornmex",
        "answer_aliases": ["City of Sornmex"],
        "answerable": True,
        "paragraphs": [
            paragraph(0, "Malket", "Malket is a film directed by Dorin."),
            paragraph(1, "Velbara", "Velbara is a film directed by Garngira.", True),
            paragraph(2, "Dorin", "Dorin was born in Plesk."),
            paragraph(3, "Garngira", "Garngira was born in Sornmex.", True),
            paragraph(4, "Sornmex", "Sornmex is a city on the river Ulm."),
        ],
        "question_decomposition": [
            hop("Who directed Velbara?", "Garngira", 1),
            hop("Where was #1 born?", "Sornmex", 3),
        ],
    }
    return {**base, **changes}


def twin(**changes: Any) -> dict[str, Any]:
    """The same question without the paragraph of its second hop."""
    kept = [paragraph for paragraph in row()["paragraphs"] if paragraph["idx"] != 3]
    hops = [hop("Who directed Velbara?", "Garngira", 1), hop("Where was #1 born?", "Sornmex", None)]
    return row(
        **{"answerable": False, "paragraphs": kept, "question_decomposition": hops} | changes
    )


def paragraph(idx: int, title: str, text: str, supporting: bool = False) -> dict[str, Any]:
    return {"idx": idx, "title": title, "paragraph_text": text, "is_supporting": supporting}


def hop(question: str, answer: str, support: int | None) -> dict[str, Any]:
    return {"id": 1, "question": question, "answer": answer, "paragraph_support_idx": support}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
