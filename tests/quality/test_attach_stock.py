"""Stock TRL scripts with one line added: the whole trace, and the same weights bit for bit.

The scripts in `tests/stock` know nothing of recording. The line goes in front of `trainer.train()`.
"""

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import flatline
from tests.quality.report import report

STOCK = Path(__file__).parent.parent / "stock"
MODEL = Path(flatline.__file__).parent / "training" / "lab" / "checkpoint"
SCRIPTS = ("reward_function", "tools", "environment")
LINE = 'import flatline; flatline.attach(trainer, os.environ["RUN"])\n'
EVERYWHERE = ("reward", "advantage", "prompt_id", "finish", "completion_tokens", "completion")


@lru_cache
def weights(name, folder, *, recorded):
    """Bytes of the trained weights of one script, run as it is or with the line."""
    text = (STOCK / f"{name}.py").read_text()
    if recorded:
        text = text.replace("trainer.train()", LINE + "trainer.train()")
    out = folder / ("recorded" if recorded else "plain")
    paths = {"OUT": str(out), "RUN": str(folder / "run"), "PYTHONPATH": str(STOCK)}
    known = {"MODEL": str(MODEL), "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(
        command, env={**os.environ, **paths, **known}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "recording stopped" not in done.stderr
    (saved,) = out.glob("*.safetensors")
    return saved.read_bytes()


@pytest.fixture(scope="module", params=SCRIPTS)
def script(request, tmp_path_factory):
    return request.param, tmp_path_factory.mktemp(request.param)


def test_the_trained_weights_are_the_same_bit_for_bit(script):
    plain, recorded = (weights(*script, recorded=recorded) for recorded in (False, True))
    assert plain == recorded
    report(f"{script[0]}: {len(plain)} bytes of trained weights, no bit differs")


def test_the_trace_is_complete(script):
    name, folder = script
    weights(name, folder, recorded=True)
    trace = flatline.Trace.open(folder / "run")
    assert not trace.warnings
    assert len(trace.steps) == trace.settings["max_steps"]
    for column in ("grad_norm", "learning_rate", "loss", "entropy", "seconds_sampling"):
        assert np.isfinite(trace.steps[column]).all(), column
    assert all(trace.rollouts.arrow(column).null_count == 0 for column in EVERYWHERE)
    assert (trace.groups().size == trace.settings["num_generations"]).all()
    tokens = trace.tokens()
    assert len(tokens.ids) == trace.rollouts["completion_tokens"].sum()
    assert np.isfinite(tokens.trainer).all()
    assert np.isfinite(tokens.sampler[tokens.author == 1]).all()
    assert (trace.rollouts["as_sampled"] == 1).all()
    assert tokens.attended.all() and tokens.prompt_attended.all()
    assert (np.unique(trace.weights["step"]) == trace.steps["step"]).all()
    assert (trace.weights["changed_share"] > 0).any()
    report(f"{name}: {len(trace.rollouts)} rollouts, {len(tokens.ids)} completion tokens")


def test_tool_output_is_told_from_what_the_model_wrote(script):
    name, folder = script
    weights(name, folder, recorded=True)
    trace = flatline.Trace.open(folder / "run")
    tokens = trace.tokens()
    assert ((tokens.author == 1) == (tokens.trained == 1)).all()
    has_tools = name != "reward_function"
    assert (tokens.author == 2).any() == has_tools
    if has_tools:
        assert trace.rollouts["tool_calls"].sum() > 0
        assert (trace.rollouts["turns"] == trace.rollouts["tool_calls"] + 1).mean() > 0.5
