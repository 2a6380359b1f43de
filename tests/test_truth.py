"""What says which answers are right: named by the user, and kept with the run."""

import pytest
from datasets import Dataset

import flatline
from flatline.errors import ConfigError
from flatline.live.trl.subject import TrlSubject
from flatline.trace.writer import MemorySink
from tests.test_trl_breadth import QUESTIONS, trained, trainer_in

SOLVED = Dataset.from_list([{**row, "solved": str(i)} for i, row in enumerate(QUESTIONS)])


def test_what_the_user_names_is_kept_with_the_run(tmp_path):
    trainer = trainer_in(tmp_path / "out", rows=SOLVED)
    flatline.attach(trainer, tmp_path / "run", correct="letters", gold="solved")
    trained(trainer)
    trace = flatline.Trace.open(tmp_path / "run")
    assert (trace.settings["correct"], trace.settings["gold"]) == ("letters", "solved")
    assert set(trace.rollouts["gold"]) <= {str(i) for i in range(8)}


def test_a_callback_is_told_as_attach_is(tmp_path):
    sink = MemorySink()
    callback = flatline.FlatlineCallback(sink, correct="letters", gold="solved")
    trained(trainer_in(tmp_path, rows=SOLVED, callbacks=[callback]))
    settings = sink.trace().settings
    assert (settings["correct"], settings["gold"]) == ("letters", "solved")


def test_a_subject_and_its_batch_know_what_the_user_named(tmp_path):
    subject = TrlSubject(trainer_in(tmp_path, rows=SOLVED), correct="letters", gold="solved")
    for settings in (subject.settings, subject.trace.settings):
        assert (settings["correct"], settings["gold"]) == ("letters", "solved")
    assert "gold" in subject.trace.rollouts


def test_without_a_name_nothing_is_told(tmp_path):
    subject = TrlSubject(trainer_in(tmp_path, rows=SOLVED))
    assert subject.settings["correct"] is None and subject.settings["gold"] is None


@pytest.mark.parametrize(
    ("told", "there"),
    [({"correct": "right"}, r"'letters'"), ({"gold": "answer"}, r"'prompt', 'solved'")],
)
def test_a_name_that_nothing_has_is_refused_with_those_that_there_are(tmp_path, told, there):
    trainer = trainer_in(tmp_path / "out", rows=SOLVED)
    for refused in (
        lambda: flatline.attach(trainer, tmp_path / "run", **told),
        lambda: flatline.checkup(trainer, **told),
    ):
        with pytest.raises(ConfigError, match=rf"There are: {there}\."):
            refused()
    assert not (tmp_path / "run").exists()
