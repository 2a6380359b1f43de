"""MuSiQue: reading rows, searching, scoring, and what is said about everything malformed."""

import time

import pytest

from flatline.errors import DataError
from flatline.tasks.base import ToolCall
from flatline.tasks.check import play
from flatline.tasks.musique import (
    WEIGHTS,
    Musique,
)
from flatline.tasks.musique_rows import UNANSWERABLE, MusiqueProblem
from tests.musique_rows import hop, paragraph, row, twin, write


def load(tmp_path, *rows, config="", **options) -> list[MusiqueProblem]:
    path = write(tmp_path / "rows.jsonl", *rows)
    return Musique(order="file", **options).load(f"{path},{config}", split="train")


def problem(tmp_path, **changes) -> MusiqueProblem:
    return load(tmp_path, row(**changes))[0]


def unanswerable(tmp_path, **changes) -> MusiqueProblem:
    return load(tmp_path, twin(**changes), config="full")[0]


def search(query: object, **more: object) -> ToolCall:
    return ToolCall(name="retrieve_documents", arguments={"query": query, **more})


def final(answer: str, cite: str = "1, 3") -> str:
    return f"<think>so</think><cite>{cite}</cite><answer>{answer}</answer>"


BOTH_HOPS = (search("Who directed Velbara?", top_n=1), search("Where was Garngira born?", top_n=1))


def test_a_row_becomes_a_problem(tmp_path):
    found = problem(tmp_path)
    assert (found.id, found.answer, found.hops) == ("2hop__1_2", "Sornmex", 2)
    assert found.aliases == ("City of Sornmex",)
    assert found.supporting == {1, 3}
    assert found.sub_questions() == ["Who directed Velbara?", "Where was Garngira born?"]


def test_noise_is_the_share_of_distractors_kept_the_same_whatever_else_is_loaded(tmp_path):
    distractors = [paragraph(idx, f"D{idx}", "text") for idx in range(10, 20)]
    long = row(paragraphs=[*row()["paragraphs"][1:4:2], *distractors])
    (alone,) = load(tmp_path, long, noise=0.3)
    *_, together = load(tmp_path, row(id="other"), long, noise=0.3)
    assert len(alone.paragraphs) == 2 + 3
    assert alone.supporting == {1, 3}
    assert alone == together
    assert [p.idx for p in load(tmp_path, long, noise=0)[0].paragraphs] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": " "}, "has an empty `question`"),
        ({"answerable": "false"}, "has `answerable` of type str where bool is needed"),
        ({"paragraphs": [paragraph(True, "", "")]}, "has `idx` of type bool where int is needed"),
        ({"question_decomposition": [hop("Who?", "X", 9)]}, "has paragraph_support_idx 9, but"),
        (
            {"paragraphs": [paragraph(i, "", "") for i in range(4)]},
            "is answerable but has no supporting paragraph",
        ),
        (
            {"paragraphs": [*row()["paragraphs"], paragraph(3, "", "")]},
            "has more than one paragraph with idx 3",
        ),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_advice(tmp_path, changes, message):
    with pytest.raises(DataError) as error:
        load(tmp_path, row(id="fine"), row(**changes))
    seen, advice = str(error.value).split("\n")
    assert seen.startswith(f"{tmp_path / 'rows.jsonl'}:2 {message}")
    assert advice.endswith(".")


def test_a_duplicate_id_names_both_places_also_across_specs(tmp_path):
    one, other = write(tmp_path / "a.jsonl", row()), write(tmp_path / "b.jsonl", row())
    with pytest.raises(DataError, match="Rollouts are grouped by id") as error:
        Musique().load(f"{one};{other}", split="train")
    assert f"{other}:1 has the id '2hop__1_2', which {one}:1 has too" in str(error.value)
    with pytest.raises(DataError, match="Rollouts are grouped by id"):
        Musique().load(f"{one};{one}", split="train")


def test_documents_are_shown_with_id_title_and_text(tmp_path):
    seen = Musique().episode(problem(tmp_path)).observe(search("Garngira born"))
    assert seen.text == (
        "Document ID: 3\n# Garngira\nGarngira was born in Sornmex.\n"
        "Document ID: 2\n# Dorin\nDorin was born in Plesk."
    )
    assert seen.documents == (3, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (search("x", top_n=0), "Error: top_n must be between 1 and 20, got 0."),
        (search(5), "Error: retrieve_documents needs 'query' as string, got int."),
        (ToolCall(name="retrieve_documents", arguments={}), "needs the argument 'query'"),
        (ToolCall(name="google", arguments={}), "Error: there is no tool 'google'."),
    ],
)
def test_a_wrong_call_is_an_observation_and_a_counted_event(tmp_path, call, message):
    episode = Musique().episode(problem(tmp_path))
    assert message in episode.observe(call).text
    assert episode.events["tool_errors"] == 1
    assert not episode.retrieved


def test_a_perfect_play_earns_1_in_every_part(tmp_path):
    score = play(Musique(), problem(tmp_path), [*BOTH_HOPS, final("sornmex")])
    assert score.parts == dict.fromkeys(WEIGHTS, 1.0)
    assert (score.reward, score.notes) == (1.0, ())


def test_each_part_is_what_it_says_and_the_reward_is_their_weighted_mean(tmp_path):
    script = [search("Velbara", top_n=1), search("Dorin", top_n=2), final("Sornmex city", "1, 2")]
    score = play(Musique(), problem(tmp_path), script)
    assert score.parts == pytest.approx(
        {
            "exact_match": 0,
            "f1": 0.8,  # against the alias: precision 1, recall 2/3
            "retrieval_recall": 1 / 2,  # 1 of {1, 3}
            "retrieval_precision": 1 / 3,  # 1 of {1, 0, 2}
            "citation": 1 / 2,
            "format": 1,
        }
    )
    assert score.reward == pytest.approx((0.8 + 0.5 + 0.4 / 3 + 0.6 * 0.5 + 0.1) / 4.0)


def test_the_hop_factor_is_half_the_hop_count(tmp_path):
    hops = [hop("Who?", "X", 1)] * 3 + [hop("Where?", "Sornmex", 3)]
    four = problem(tmp_path, question_decomposition=hops)
    script = [*BOTH_HOPS, final("Sornmex")]
    assert play(Musique(hop_factor=True), four, script).reward == pytest.approx(2.0)
    assert play(Musique(), four, script).reward == pytest.approx(1.0)


def test_an_unanswerable_problem_wants_to_be_called_so(tmp_path):
    found = unanswerable(tmp_path)
    said = play(Musique(), found, [BOTH_HOPS[0], final("Unanswerable.", "1")])
    guessed = play(Musique(), found, [BOTH_HOPS[0], final("Sornmex", "1")])
    assert said.reward == 1
    assert guessed.parts["exact_match"] == guessed.parts["f1"] == 0


def test_parts_that_do_not_apply_are_left_out(tmp_path):
    bare = [paragraph(0, "Malket", "A film."), paragraph(2, "Dorin", "A man.")]
    hops = [hop("Who?", "Garngira", None), hop("Where was #1 born?", "Sornmex", None)]
    found = unanswerable(tmp_path, paragraphs=bare, question_decomposition=hops)
    score = play(Musique(), found, [final(UNANSWERABLE, "")])
    assert score.parts == {"exact_match": 1, "f1": 1, "format": 1}
    assert score.reward == 1
    only_recall = Musique(weights={**dict.fromkeys(WEIGHTS, 0.0), "retrieval_recall": 1})
    assert play(only_recall, found, [final(UNANSWERABLE, "")]).reward == 0


@pytest.mark.parametrize(
    ("message", "note"),
    [
        ("The answer is Sornmex.", "no <answer> tag: the message ends with 'The answer is Sor"),
        ("<think><answer>Sornmex</answer></think>", "no <answer> tag"),
        (final(" "), "the <answer> tag is empty"),
        ("<answer>Sornmex</answer>", "no <cite> tag"),
        (final("Sornmex", "Velbara, 3"), "<cite> holds what is no document id: Velbara"),
    ],
)
def test_a_malformed_answer_is_noted_and_counted(tmp_path, message, note):
    episode = Musique().episode(problem(tmp_path))
    score = episode.score(message)
    assert any(seen.startswith(note) for seen in score.notes)
    assert episode.events["malformed_answers"] == 1
    episode.score(message)
    assert episode.events["malformed_answers"] == 1


def test_an_answer_that_can_be_read_counts_although_the_format_is_broken(tmp_path):
    score = play(Musique(), problem(tmp_path), [*BOTH_HOPS, "Well: " + final("Sornmex")])
    assert (score.parts["exact_match"], score.parts["format"]) == (1, 0)
    assert score.notes == ("there is text outside the tags",)


def test_a_model_that_never_finishes_earns_what_its_searches_earned(tmp_path):
    episode = Musique().episode(problem(tmp_path))
    for call in BOTH_HOPS:
        episode.observe(call)
    score = episode.score(None)
    assert score.parts["retrieval_recall"] == 1
    assert score.parts["f1"] == score.parts["format"] == 0
    assert score.notes == ("no final message: the model never finished",)
    assert not episode.events["malformed_answers"]


@pytest.mark.parametrize(
    "message",
    [
        "<answer>" * 130_000,
        final("Sornmex", "9" * 1_000_000),
        "<think>" * 70_000 + "</think>" * 70_000 + final("Sornmex"),
    ],
)
def test_a_hostile_megabyte_is_scored_in_well_under_a_second(tmp_path, message):
    episode = Musique().episode(problem(tmp_path))
    start = time.process_time()
    score = episode.score(message)
    assert time.process_time() - start < 1
    assert all(len(note) < 300 for note in score.notes)
