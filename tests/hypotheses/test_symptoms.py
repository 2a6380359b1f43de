"""Every hypothesis is behind some symptom, and nothing that explains a symptom is left out."""

import pytest
from typer.testing import CliRunner

from flatline.cli import app
from flatline.hypotheses import HYPOTHESES, find
from flatline.hypotheses.symptoms import SYMPTOMS

each = pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda one: one.name)


def test_every_hypothesis_is_behind_some_symptom():
    behind = {code for symptom in SYMPTOMS for code in symptom.codes}
    assert behind == {one.id for one in HYPOTHESES}


@each
def test_what_explains_its_signs_is_behind_it_and_nothing_twice(symptom):
    explaining = {one.id for one in HYPOTHESES if set(one.explains) & set(symptom.signs)}
    assert explaining | set(symptom.signs) <= set(symptom.codes)
    listed = [code for codes in symptom.behind.values() for code in codes]
    assert sorted(listed) == sorted(set(listed))


@each
def test_explain_lists_what_is_behind_it(symptom):
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain", symptom.name]).stdout
    assert symptom.title in shown
    names = [f"{code} {find(code).name}" for code in symptom.codes]
    assert [name for name in names if name not in shown] == []


def test_explain_without_a_name_lists_the_symptoms_too():
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain"]).stdout
    assert [one.name for one in SYMPTOMS if one.name not in shown] == []


def test_a_symptom_in_other_words_is_offered():
    done = CliRunner().invoke(app, ["explain", "reward flat from start"])
    assert done.exit_code == 2 and "reward-flat" in done.stderr
