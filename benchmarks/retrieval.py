"""bm25s against rank-bm25, per query over the paragraphs of one World problem, in one run.

    python benchmarks/retrieval.py

Both rank the same tokens of the same paragraphs; indexing is timed apart, because an episode
indexes once and queries several times. Rounds are interleaved: these machines are noisy.
"""

import statistics
import time
from collections.abc import Sequence

from rank_bm25 import BM25Okapi

from flatline.tasks import world
from flatline.tasks.retrieval import Bm25, Paragraph, _words

PROBLEMS = 200
ROUNDS = 5
TOP_N = 2


class RankBm25:
    """The alternative behind the same interface."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self._ids = [p.idx for p in paragraphs]
        self._index = BM25Okapi([_words(p.searched) for p in paragraphs])

    def search(self, query: str, top_n: int) -> list[int]:
        scores = self._index.get_scores(_words(query))
        return sorted(self._ids, key=lambda i: (-scores[i], i))[:top_n]


def main() -> None:
    problems = [
        (_paragraphs(row), [d["question"] for d in row["question_decomposition"]])
        for row in world.rows("validation", 0, PROBLEMS)
    ]
    queries = sum(len(asked) for _, asked in problems)
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for kind in (Bm25, RankBm25):
            began = time.perf_counter()
            made = [(kind(paragraphs), asked) for paragraphs, asked in problems]
            indexed = time.perf_counter()
            for retriever, asked in made:
                for query in asked:
                    retriever.search(query, TOP_N)
            done = time.perf_counter()
            times.setdefault(f"{kind.__name__} index", []).append((indexed - began) / PROBLEMS)
            times.setdefault(f"{kind.__name__} query", []).append((done - indexed) / queries)
    middle = {name: statistics.median(values) for name, values in times.items()}
    for name, value in middle.items():
        print(f"{name:<16} {value * 1e6:8.1f} us")
    for what in ("index", "query"):
        ratio = middle[f"RankBm25 {what}"] / middle[f"Bm25 {what}"]
        print(f"bm25s per {what}: {ratio:.2f}x the speed of rank-bm25")


def _paragraphs(row: dict) -> list[Paragraph]:
    return [
        Paragraph(
            idx=p["idx"],
            title=p["title"],
            text=p["paragraph_text"],
            is_supporting=p["is_supporting"],
        )
        for p in row["paragraphs"]
    ]


if __name__ == "__main__":
    main()
