"""What a checkup cannot put back is named before it begins; what it did not, afterwards."""

import json

import pytest
import torch
from datasets import Dataset

import flatline
from flatline.diagnosis.checkup import subject_of
from flatline.live.restore.snapshot import differing
from flatline.live.restore.tell import NotKept, PutBack
from tests.restored import letters, trainer_in
from tests.test_json_schemas import assert_fits
from tests.test_loop import loop_of
from tests.test_subject import built_in, tool_trainer, users_trainer

torch.set_num_threads(1)


class Streaming:
    """Pays from a stream, and prints when it is asked."""

    __name__ = "streaming"

    def __init__(self, calls):
        self.stream = (value for value in range(10**6))
        self.calls = calls

    def __call__(self, completions, **_):
        with self.calls.open("a") as calls:
            calls.write("asked\n")
        print("asked", file=__import__("sys").stderr)
        return [value + next(self.stream) % 2 for value in letters(completions)]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    """A report on it, what was said on stderr, and how often it was asked."""
    import contextlib
    import io

    folder, said = tmp_path_factory.mktemp("streamed"), io.StringIO()
    trainer = trainer_in(folder, reward=Streaming(folder / "calls"))
    with contextlib.redirect_stderr(said):
        report = flatline.checkup(trainer)
    return report, said.getvalue(), len((folder / "calls").read_text().splitlines())


def test_what_cannot_be_put_back_is_named_before_the_first_reward_is_asked_for(streamed):
    _, said, _ = streamed
    assert -1 < said.find("streaming") < said.find("asked\n")
    assert "`.stream`" in said[: said.find("asked\n")]


def test_the_report_names_it_with_the_true_number_of_calls(streamed):
    report, _, calls = streamed
    assert report.put_back.calls == {"streaming": calls}
    (note,) = [text for text in report.caveats if "`.stream`" in text]
    assert f"`streaming` {calls} times" in note and note in " ".join(str(report).split())
    told = report.to_json()["put_back"]
    assert told["verified"] and told["calls"] == {"streaming": calls}
    assert ["generator" in one["what"] for one in told["not_kept"]] == [True]
    assert_fits("diagnosis-1", report.to_json())


def test_a_difference_that_is_left_is_reported_and_not_hidden(tmp_path, monkeypatch, capsys):
    """A tensor that is not put back: planted into the snapshot."""
    from flatline.live.restore.tensors import Tensors

    put_back = Tensors.put_back

    def forgetful(self):
        put_back(self)
        weight = next(one.tensor for one in self.copied if one.must)
        weight.data.view(-1)[0] += 1e-3

    monkeypatch.setattr(Tensors, "put_back", forgetful)
    report = flatline.checkup(trainer_in(tmp_path))
    assert report.put_back.before != report.put_back.after
    assert any("the model" in place for place in report.put_back.differs)
    assert not report.to_json()["put_back"]["verified"]
    assert any("not put back as it was" in text for text in report.caveats)
    assert "not put back as it was" in capsys.readouterr().err


def test_of_a_healthy_trainer_nothing_is_named_and_all_is_verified(tmp_path, capsys):
    report = flatline.checkup(users_trainer(tmp_path))
    put_back = report.put_back
    assert (put_back.not_kept, put_back.not_looked_into, put_back.differs) == ((), (), ())
    assert put_back.before == put_back.after and put_back.kept > 100
    assert put_back.calls and put_back.caveats == ()
    assert "put back" not in capsys.readouterr().err
    assert json.loads(json.dumps(report.to_json()))["put_back"]["verified"]


def ours(folder):
    built = built_in(folder, batch_size=8)
    return subject_of(built).live


def with_tools(folder):
    return subject_of(tool_trainer(folder)).live


def loop(folder):
    return subject_of(loop_of()).live


def adaptive(folder):
    """With a schedule, an optimizer and data of its own."""
    rows = Dataset.from_dict({"prompt": ["say one", "say two"] * 4}).shuffle(seed=1)
    trainer = trainer_in(folder, data=rows.map(lambda row: row), optimizer=torch.optim.AdamW)
    trainer.create_scheduler(num_training_steps=4, optimizer=trainer.optimizer)
    return subject_of(trainer).live


@pytest.mark.parametrize("build", [ours, with_tools, loop, adaptive])
def test_of_other_healthy_trainings_nothing_is_named_either(build, tmp_path):
    snapshot = build(tmp_path).snapshot()
    assert (snapshot.not_kept, snapshot.not_looked_into) == ((), ())
    before = snapshot.digests()
    snapshot.put_back()
    assert differing(before, snapshot.digests()) == ()


def test_a_run_or_a_log_has_nothing_to_put_back():
    from flatline.diagnosis.report import diagnose
    from tests.traces import healthy_trace

    assert diagnose(healthy_trace(steps=2)).to_json()["put_back"] is None


def test_only_some_of_many_are_listed_in_a_sentence_and_how_many_more():
    many = tuple(NotKept(f"place {k}", "a generator") for k in range(9))
    put_back = PutBack(
        kept=1, before="a", after="a", differs=(), not_kept=many, not_looked_into=(), calls={}
    )
    (note,) = put_back.caveats
    assert "place 4" in note and "place 5" not in note and "4 more" in note
    assert len(put_back.to_json()["not_kept"]) == 9
