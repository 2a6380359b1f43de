"""Retrievers over the paragraphs of one problem.

    bm25            words in common, weighted by rarity (the `bm25s` library)
    semantic        closeness of meaning, by the static embeddings that ship with `wordllama`
    semantic:NAME   the same with a sentence-transformers model, by its name or folder
    hybrid          bm25 and semantic, joined by reciprocal-rank fusion
    golden          only the supporting paragraphs, in bm25's order: the upper bound

To add one, write a class with `search` and name it in `RETRIEVERS`.
Equal scores are ordered by document id, so the same query always brings the same documents.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flatline.errors import ConfigError, type_to_add

FUSION_CONSTANT = 60
"""k of reciprocal-rank fusion, as in Cormack et al. (2009); a larger one flattens the ranks."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """One document of a problem."""

    idx: int
    """Document id, unique inside the problem."""
    title: str
    """Title of the page it was taken from; several paragraphs may share one."""
    text: str
    """The paragraph itself."""
    is_supporting: bool
    """Whether a hop of the problem is answered by it."""

    @property
    def searched(self) -> str:
        """What retrievers index."""
        return f"{self.title}\n{self.text}"


class Retriever(Protocol):
    """Finds documents of one problem."""

    def search(self, query: str, top_n: int) -> list[int]:
        """Ids of at most `top_n` documents, best first; fewer, or none, where fewer fit."""


Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
"""Texts to one vector each."""

Factory = Callable[[Sequence[Paragraph]], Retriever]
"""Indexes the paragraphs of one problem."""


class Bm25:
    """Ranks by words in common; a document that shares no word with the query is never found.

    Function words count only where the query has no others: "The Who" is a band.
    """

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self._paragraphs = tuple(paragraphs)
        self._index = _WordIndex(paragraphs, _words)

    def search(self, query: str, top_n: int) -> list[int]:
        index = self._index if _words(query) else self._index_of_all_words
        return index.search(query, top_n)

    @cached_property
    def _index_of_all_words(self) -> "_WordIndex":
        return _WordIndex(self._paragraphs, _all_words)


class _WordIndex:
    """BM25 over the words that `words` takes from a text."""

    def __init__(self, paragraphs: Sequence[Paragraph], words: Callable[[str], list[str]]) -> None:
        self._ids = [paragraph.idx for paragraph in paragraphs]
        self._words = words
        self._vocabulary: dict[str, int] = {}
        documents = [words(paragraph.searched) for paragraph in paragraphs]
        rows = [[self._number(word) for word in document] for document in documents]
        self._index = _bm25_index(rows, self._vocabulary) if self._vocabulary else None

    def search(self, query: str, top_n: int) -> list[int]:
        known = [self._vocabulary[word] for word in self._words(query) if word in self._vocabulary]
        if self._index is None or not known:
            return []
        scores = self._index.get_scores_from_ids(known)
        return _best(zip(self._ids, scores.tolist(), strict=True), top_n)

    def _number(self, word: str) -> int:
        return self._vocabulary.setdefault(word, len(self._vocabulary))


class Semantic:
    """Ranks by the cosine of embeddings; every document is found by any query that has words."""

    def __init__(self, paragraphs: Sequence[Paragraph], *, embed: Embed) -> None:
        self._ids = [paragraph.idx for paragraph in paragraphs]
        self._embed = embed
        self._vectors = _unit(embed([paragraph.searched for paragraph in paragraphs]))

    def search(self, query: str, top_n: int) -> list[int]:
        vector = _unit(self._embed([query]))[0] if query.strip() else np.zeros(1)
        if not vector.any():
            return []
        closeness = (self._vectors @ vector).tolist()
        # Any order is better than none, so also a negative cosine counts as found.
        return _best(((i, c + 2) for i, c in zip(self._ids, closeness, strict=True)), top_n)


class Hybrid:
    """Joins the rankings of bm25 and semantic; ranks need no common scale, scores would."""

    def __init__(self, paragraphs: Sequence[Paragraph], *, embed: Embed) -> None:
        self._size = len(paragraphs)
        self._retrievers = (Bm25(paragraphs), Semantic(paragraphs, embed=embed))

    def search(self, query: str, top_n: int) -> list[int]:
        fused: dict[int, float] = {}
        for retriever in self._retrievers:
            for rank, idx in enumerate(retriever.search(query, self._size), 1):
                fused[idx] = fused.get(idx, 0) + 1 / (FUSION_CONSTANT + rank)
        return _best(fused.items(), top_n)


class Golden:
    """Finds supporting paragraphs only, those closest to the query first."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self._supporting = [p.idx for p in paragraphs if p.is_supporting]
        self._bm25 = Bm25(paragraphs)
        self._size = len(paragraphs)

    def search(self, query: str, top_n: int) -> list[int]:
        if not query.strip():
            return []
        ranked = [i for i in self._bm25.search(query, self._size) if i in self._supporting]
        rest = sorted(set(self._supporting) - set(ranked))
        return [*ranked, *rest][:top_n]


def _words(text: str) -> list[str]:
    """Words to match; function words would make every query match every document."""
    return [word for word in _all_words(text) if word not in _stop_words()]


def _all_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    # EN_PLUS holds question words too: they say nothing about what is asked for.
    return frozenset(_bm25s().stopwords.STOPWORDS_EN_PLUS)


def _bm25_index(rows: list[list[int]], vocabulary: dict[str, int]) -> Any:
    index = _bm25s().BM25()
    index.index((rows, dict(vocabulary)), show_progress=False)
    return index


@lru_cache(maxsize=1)
def _bm25s() -> Any:
    """The library, imported where it is needed and without JAX.

    Where JAX is installed, bm25s runs a kernel of it at import, and JAX then takes most of the
    memory of every GPU it sees: the model's. flatline never uses that path.
    """
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # makes `import jax` an ImportError
    try:
        import bm25s
    finally:
        if hidden:
            del sys.modules["jax"]
    return bm25s


def _best(scored: Iterable[tuple[int, float]], top_n: int) -> list[int]:
    """Ids of the best positive scores; equal ones by id."""
    found = sorted((-score, idx) for idx, score in scored if score > 0)
    return [idx for _, idx in found[:top_n]]


def _unit(vectors: Vectors) -> Vectors:
    """Vectors of length 1; a text without tokens keeps its zero vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


@lru_cache(maxsize=1)
def bundled_embedding() -> Embed:
    """Mean of the static token vectors in wordllama's package folder.

    The files are read directly: `WordLlama.load()` of 0.4.0.post1 looks for the tokenizer in a
    folder of another name and then goes to the network, and importing the package reconfigures
    the root logger.
    """
    folder = _package_folder("wordllama")
    weights = folder / "weights" / "l2_supercat_256.safetensors"
    tokens = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    if not (weights.is_file() and tokens.is_file()):
        raise ConfigError(
            f"The installed wordllama has no {weights.name} or no {tokens.name} in {folder}.\n"
            'Install the version flatline was tested with: pip install "wordllama==0.4.0.post1".'
        )
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    (table,) = load_file(weights).values()
    tokenizer = Tokenizer.from_file(str(tokens))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return partial(_mean_of_tokens, table=table.astype(np.float32), tokenizer=tokenizer)


def _mean_of_tokens(texts: Sequence[str], *, table: Vectors, tokenizer: Any) -> Vectors:
    """One text at a time, each distinct token once: padding to a 100k-character text would take
    gigabytes."""
    vectors = np.zeros((len(texts), table.shape[1]), dtype=np.float32)
    for row, text in enumerate(texts):
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        ids, counts = np.unique(np.minimum(tokens, len(table) - 1), return_counts=True)
        if len(ids):
            vectors[row] = counts.astype(np.float32) @ table[ids] / counts.sum()
    return vectors


def _package_folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"The semantic and hybrid retrievers need {package}, which is not installed.\n"
            f"{type_to_add('semantic')}, or use the bm25 retriever."
        )
    return Path(found.submodule_search_locations[0])


@lru_cache(maxsize=4)
def _sentence_transformer(name: str) -> Embed:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigError(
            f"The retriever semantic:{name} needs sentence-transformers, which is not installed.\n"
            "Install it with `pip install sentence-transformers`, or use the semantic retriever."
        ) from error
    try:
        model = SentenceTransformer(name)
    except Exception as error:  # the library raises many kinds; all mean: no such model here
        raise ConfigError(
            f"The sentence-transformers model {name!r} cannot be loaded: {error}\n"
            "Give the folder of a downloaded model, or use the semantic retriever."
        ) from error
    return lambda texts: np.asarray(model.encode(list(texts)), dtype=np.float32)


# -- the registry -----------------------------------------------------------------------------

RETRIEVERS: dict[str, Callable[[], Factory]] = {
    "bm25": lambda: Bm25,
    "semantic": lambda: partial(Semantic, embed=bundled_embedding()),
    "hybrid": lambda: partial(Hybrid, embed=bundled_embedding()),
    "golden": lambda: Golden,
}
"""Every retriever by name. The outer call loads what it needs, once a process."""


def retriever_factory(name: str) -> Factory:
    """The retriever called `name`, ready to index a problem's paragraphs."""
    kind, _, model = name.partition(":")
    if model and kind == "semantic":
        return partial(Semantic, embed=_sentence_transformer(model))
    if name not in RETRIEVERS:
        raise ConfigError(
            f"There is no retriever {name!r}.\n"
            f"Choose one of {', '.join(RETRIEVERS)}, or semantic:NAME for a sentence-transformers "
            "model."
        )
    return RETRIEVERS[name]()
