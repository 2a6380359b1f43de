"""SkyRL's callback records what a step trained on.

The fixture is what SkyRL 0.3.0's own loop gave its callbacks in two steps
(`python benchmarks/skyrl_callback.py --fixture`); `tests/quality/test_skyrl_trainer.py` runs that
loop.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flatline
import flatline.skyrl
from flatline.trace import Trace

FIXTURE = Path(__file__).parent / "fixtures" / "skyrl" / "handed_over.json"


class Batch(dict):
    """SkyRL's is a dict of tensors with metadata, too."""

    metadata: dict


def played(run_dir, change=lambda batch: None):
    told = json.loads(FIXTURE.read_text())
    recording = flatline.skyrl.Recording(run_dir)
    tokenizer = SimpleNamespace(
        eos_token_id=2, batch_decode=lambda rows: [" ".join(map(str, row)) for row in rows]
    )
    trainer = SimpleNamespace(cfg=told["config"], tokenizer=tokenizer)
    recording.on_train_start(trainer, None, None)
    for step in told["steps"]:
        batch = Batch({name: torch.tensor(rows) for name, rows in step["batch"].items()})
        batch.metadata = step["metadata"]
        change(batch)
        trainer.all_metrics = step["all_metrics"]
        given = SimpleNamespace(
            batch=batch, metrics=step["metrics"], global_step=step["global_step"]
        )
        recording.on_step_end(trainer, given, None)
    recording.on_train_end(trainer, None, None)
    return told, Trace.open(run_dir)


def test_every_row_is_recorded_with_its_group_its_advantage_and_its_tokens(tmp_path):
    told, trace = played(tmp_path / "run")
    table = trace.rollouts
    assert len(table["group"]) == 2 * 64
    assert np.unique(table["group"], return_counts=True)[1].tolist() == [16] * 8
    first = told["steps"][0]["batch"]
    tokens = trace.tokens([1])
    assert len(tokens.ids) == int(np.sum(first["response_mask"]))
    assert table["completion_tokens"][:64].tolist() == np.sum(first["response_mask"], 1).tolist()
    assert table["advantage"][0] == pytest.approx(first["advantages"][0][-1])
    assert np.abs(tokens.sampler - tokens.trainer).max() < 1e-5
    assert table["completion"][0].split()[-1] == "2"
    assert set(table["finish"]) == {"eos"}


def test_the_reward_and_the_settings_are_those_of_the_trainer(tmp_path):
    told, trace = played(tmp_path / "run")
    assert trace.steps["reward"].tolist() == pytest.approx(
        [step["all_metrics"]["reward/avg_raw_reward"] for step in told["steps"]]
    )
    assert trace.settings["num_generations"] == 8
    assert trace.settings["temperature"] == 1.0
    assert trace.settings["learning_rate"] == 3e-3
    assert trace.settings["beta"] == 0


def test_rows_that_fill_the_last_pass_are_left_out(tmp_path):
    _, trace = played(tmp_path / "run", lambda batch: batch.metadata.update(pad_size=8))
    assert len(trace.rollouts["group"]) == 2 * 56


def test_a_mask_that_leaves_out_the_end_is_named(tmp_path):
    def cut(batch):
        batch["loss_mask"][:, -1] = 0

    played(tmp_path / "run", cut)
    report = flatline.diagnose(tmp_path / "run")
    assert [one.hypothesis for one in report.findings if one.level == "fault"] == ["H02"]


def test_a_healthy_run_is_silent(tmp_path):
    played(tmp_path / "run")
    report = flatline.diagnose(tmp_path / "run")
    assert not [one for one in report.findings if one.level in ("fault", "suspect")]


def test_what_goes_wrong_never_reaches_the_training(tmp_path, capsys):
    recording = flatline.skyrl.Recording(tmp_path / "run")
    recording.on_step_end(SimpleNamespace(cfg={}), SimpleNamespace(batch=None), None)
    assert "training goes on" in capsys.readouterr().err
