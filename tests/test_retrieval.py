"""Retrievers: what they find, in which order, and on text nobody expects."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from flatline.errors import ConfigError
from flatline.tasks import retrieval
from flatline.tasks.retrieval import RETRIEVERS, Paragraph, retriever_factory

try:
    retriever_factory("semantic")
    BUILT_IN = sorted(RETRIEVERS)
except ConfigError:
    BUILT_IN = ["bm25", "golden"]


def documents(*texts: str, supporting: tuple[int, ...] = ()) -> tuple[Paragraph, ...]:
    return tuple(
        Paragraph(idx=idx, title=f"Page {idx}", text=text, is_supporting=idx in supporting)
        for idx, text in enumerate(texts)
    )


FILMS = documents(
    "Malket is a film directed by Dorin.",
    "Velbara is a film directed by Garngira.",
    "Garngira was born in Sornmex.",
    "Ulm is a river.",
    supporting=(1, 2),
)


def search(name: str, query: str, top_n: int = 2, among=FILMS) -> list[int]:
    return retriever_factory(name)(among).search(query, top_n)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_document_that_answers_comes_first(name):
    among = documents(
        "A river flows to the sea.",
        "The composer wrote three operas.",
        "The bridge was built of steel.",
        supporting=(0, 1, 2),
    )
    assert search(name, "Which operas did the composer write?", among=among)[0] == 1
    assert search(name, "steel bridge", among=among)[0] == 2


def test_golden_finds_supporting_documents_only_whatever_is_asked():
    assert search("golden", "Dorin film Malket", 20) == [1, 2]
    assert search("golden", "zebra", 1) == [1]
    assert search("golden", "born in Sornmex", 1) == [2]
    assert search("golden", "anything", among=documents("a", "b")) == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_scores_are_ordered_by_document_id(name):
    same = [
        Paragraph(idx=idx, title="Same", text="the same words", is_supporting=True)
        for idx in (4, 1, 3, 0, 2)
    ]
    assert search(name, "same words", 5, among=tuple(same)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_100k_character_paragraph_and_query_are_fine(name):
    factory = retriever_factory(name)
    start = time.process_time()
    index = factory(documents("river " * 17_000, "Velbara", "🙂" * 100_000, supporting=(0, 1)))
    assert index.search("Velbara", 1) == [1]
    assert index.search("river " * 17_000, 1) == [0]
    assert time.process_time() - start < 5


def test_hybrid_joins_the_ranks_of_both(monkeypatch):
    # bm25: 1, 2, 0; semantic: 2, 0, 3, 1. Sums of 1 / (60 + rank) put 2 before 1 before 0.
    monkeypatch.setattr(retrieval.Bm25, "search", lambda *_: [1, 2, 0])
    monkeypatch.setattr(retrieval.Semantic, "search", lambda *_: [2, 0, 3, 1])
    hybrid = retrieval.Hybrid(FILMS, embed=lambda texts: np.ones((len(texts), 2), np.float32))
    assert hybrid.search("anything", 4) == [2, 1, 0, 3]


@pytest.mark.skipif("semantic" not in BUILT_IN, reason="wordllama is not installed")
def test_our_embedding_is_the_one_wordllama_computes():
    code = """
from importlib.util import find_spec
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from wordllama.inference import WordLlamaInference
from flatline.tasks.retrieval import bundled_embedding
folder = Path(find_spec("wordllama").submodule_search_locations[0])
(table,) = load_file(folder / "weights/l2_supercat_256.safetensors").values()
tokenizer = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
texts = ["Velbara is a film.", "שלום 🙂", "a b a b a"]
theirs = WordLlamaInference(table, tokenizer).embed(texts)
assert np.abs(theirs - bundled_embedding()(texts)).max() < 1e-5
"""
    # In its own process: importing wordllama reconfigures the root logger.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_bm25_never_imports_jax_which_would_take_the_memory_of_every_gpu(tmp_path):
    """bm25s runs a JAX kernel at import where JAX is installed; a stand-in tells on it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise RuntimeError('jax was imported')")
    code = (
        "from flatline.tasks.retrieval import Bm25, Paragraph\n"
        "one = Paragraph(idx=0, title='Velbara', text='A film.', is_supporting=True)\n"
        "assert Bm25([one]).search('velbara', 1) == [0]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
