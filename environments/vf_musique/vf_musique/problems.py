"""Problems as plain data and back. They travel to the tool server and into the saved traces."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flatline.tasks.base import Problem
from flatline.tasks.musique_rows import Hop, MusiqueProblem
from flatline.tasks.retrieval import Paragraph


def as_data(problem: Problem) -> dict[str, Any]:
    return asdict(problem)


def from_data(data: Mapping[str, Any]) -> MusiqueProblem:
    return MusiqueProblem(
        **{
            **data,
            "aliases": tuple(data["aliases"]),
            "paragraphs": tuple(Paragraph(**paragraph) for paragraph in data["paragraphs"]),
            "decomposition": tuple(Hop(**hop) for hop in data["decomposition"]),
        }
    )
