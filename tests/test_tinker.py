"""Loops on the Tinker API are recorded and looked at; its clients stand in this process.

`tests/quality/test_tinker_served.py` does the same with the real clients and a real server.
"""

import asyncio
import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaForCausalLM

import flatline
import flatline.tinker
from flatline.errors import ConfigError, TraceError
from flatline.trace import Trace
from tests import tinker_standin

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import tinker_api
from tinker_api import SETTINGS, Grpo, recorded


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LlamaForCausalLM.from_pretrained(tinker_api.make_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def service(model, monkeypatch):
    tinker_standin.installed(monkeypatch)
    return tinker_standin.ServiceClient(copy.deepcopy(model))


def train(service, folder, defect="", steps=10):
    loop = Grpo(defect)
    training = service.create_lora_training_client("model")
    recorded(loop, training, folder / "run", steps=steps)
    return loop, Trace.open(folder / "run")


def checked(service, defect="", **settings):
    training = service.create_lora_training_client("model")
    loop = Grpo(defect)
    return flatline.checkup(
        flatline.tinker.Training(service, training, loop.step, {**SETTINGS, **settings})
    )


def alarms(report):
    return [one.hypothesis for one in report.findings if one.level in ("fault", "suspect")]


def found(report, code):
    return next(one for one in report.findings if one.hypothesis == code)


def test_a_healthy_run_learns_and_nothing_is_named(service, tmp_path):
    loop, _ = train(service, tmp_path, steps=12)
    assert sum(loop.rewards[-3:]) > sum(loop.rewards[:3])
    assert alarms(flatline.diagnose(tmp_path / "run")) == []


@pytest.mark.parametrize(
    ("defect", "code"), [("mask", "H02"), ("stale", "H17"), ("temperature", "H21")]
)
def test_what_is_planted_is_named_in_a_recorded_run(service, tmp_path, defect, code):
    train(service, tmp_path, defect)
    assert code in alarms(flatline.diagnose(tmp_path / "run"))


def test_a_checkup_of_a_healthy_loop_is_silent(service):
    report = checked(service)
    assert alarms(report) == []
    for code in ("H49", "H50", "H51", "H53", "H54", "H55", "H56", "H58", "H59"):
        assert found(report, code).level == "ok", found(report, code).text
    for code in ("H25", "H26", "H27", "H57"):
        assert found(report, code).level == "unknown", "no client shows it"


@pytest.mark.parametrize(
    ("defect", "code"),
    [("mask", "H51"), ("stale", "H59"), ("temperature", "H21"), ("shift", "H50"), ("old", "H55")],
)
def test_what_is_planted_is_named_by_a_checkup(service, defect, code):
    assert code in alarms(checked(service, defect))


def test_a_checkup_says_that_advantages_are_not_those_that_were_asked_for(service):
    assert "H53" in alarms(checked(service, scale_rewards="group"))


def test_a_checkup_leaves_the_training_as_it_was(service):
    training = service.create_lora_training_client("model")
    before = copy.deepcopy(training._model.state_dict())
    flatline.checkup(flatline.tinker.Training(service, training, Grpo().step, SETTINGS))
    after = training._model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not training._optimizer.state
    assert all(weight.grad is None for weight in training._model.parameters())


def test_a_step_that_trains_another_client_is_refused_before_it_trains(service):
    training = service.create_lora_training_client("model")
    before = copy.deepcopy(training._model.state_dict())
    loop = Grpo()
    asked = flatline.tinker.Training(service, training, lambda _: loop.step(training), SETTINGS)
    with pytest.raises(ConfigError, match="does not train the client"):
        flatline.checkup(asked)
    assert all(torch.equal(before[name], one) for name, one in training._model.state_dict().items())
    with pytest.raises(ConfigError, match="no optimizer step"):
        flatline.checkup(flatline.tinker.Training(service, training, lambda _: None, SETTINGS))


def test_a_server_that_does_not_keep_a_copy_apart_is_told(service, monkeypatch):
    """The training must be left alone, and where a server does otherwise nobody may stay silent."""
    training = service.create_lora_training_client("model")
    monkeypatch.setattr(
        tinker_standin.ServiceClient,
        "create_training_client_from_state_with_optimizer",
        lambda self, path: copy.copy(training),
    )
    loop = Grpo(rate=0.1)
    report = flatline.checkup(flatline.tinker.Training(service, training, loop.step, SETTINGS))
    assert "the training was changed" in found(report, "H54").text


def test_every_sample_is_recorded_with_its_reward_its_group_and_its_weights(service, tmp_path):
    loop, trace = train(service, tmp_path, steps=3)
    table = trace.rollouts
    assert len(table["reward"]) == 3 * tinker_api.GROUP * tinker_api.PROMPTS
    assert table["weight_version"].tolist() == (table["step"] - 1).tolist()
    assert trace.steps["reward"] == pytest.approx(loop.rewards)
    assert trace.settings["num_generations"] == tinker_api.GROUP
    assert trace.settings["learning_rate"] == 3e-3
    assert trace.settings["temperature"] == 1.0


def test_groups_that_the_loop_leaves_out_of_its_data_count_in_the_reward(
    service, tmp_path, monkeypatch
):
    """Loops often drop groups of equal rewards, which have no advantage."""
    whole = tinker_standin.TrainingClient.forward_backward

    def without_zeros(self, data, loss_fn, loss_fn_config=None):
        kept = [one for one in data if any(one.loss_fn_inputs["advantages"].data)]
        return whole(self, kept, loss_fn, loss_fn_config)

    monkeypatch.setattr(tinker_standin.TrainingClient, "forward_backward", without_zeros)
    loop, trace = train(service, tmp_path, steps=3)
    assert trace.steps["reward"] == pytest.approx(loop.rewards)
    assert alarms(flatline.diagnose(tmp_path / "run")) == []


def test_recording_changes_no_weight(service, tmp_path):
    plain, watched = (service.create_lora_training_client("model") for _ in range(2))
    loop = Grpo()
    for _ in range(2):
        loop.step(plain)
    recorded(Grpo(), watched, tmp_path / "run", steps=2)
    pairs = zip(plain._model.parameters(), watched._model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_clients_are_their_own_again_after_a_recording(service, tmp_path):
    kinds = (tinker_standin.SamplingClient, tinker_standin.TrainingClient)
    before = [dict(vars(kind)) for kind in kinds]
    with flatline.tinker.watch(tmp_path / "run"):
        assert [dict(vars(kind)) for kind in kinds] != before
    assert [dict(vars(kind)) for kind in kinds] == before


def test_a_sampling_client_made_from_saved_weights_has_their_version(service, tmp_path):
    training = service.create_lora_training_client("model")
    loop = Grpo("stale")
    with flatline.tinker.watch(tmp_path / "run"):
        for step in range(3):
            path = training.save_weights_for_sampler(f"step-{step}").result().path
            loop.sampler = service.create_sampling_client(model_path=path)
            loop.step(training)
    table = Trace.open(tmp_path / "run").rollouts
    assert table["weight_version"].tolist() == (table["step"] - 1).tolist()


def test_clients_that_are_awaited_are_heard(service, tmp_path):
    training = service.create_lora_training_client("model")
    types = tinker_standin.types

    async def step():
        sampler = await training.save_weights_and_get_sampling_client_async()
        prompt = types.ModelInput.from_ints([1, 5, 3, 6])
        params = types.SamplingParams(max_tokens=4, stop=[2], seed=1)
        answer = await sampler.sample_async(prompt, 4, params)
        flatline.tinker.rewards([1.0, 0.0, 1.0, 0.0], answer.sequences)
        loop = Grpo()
        data = [
            loop.datum(types, [1, 5, 3, 6], one, advantage)
            for one, advantage in zip(answer.sequences, [0.5, -0.5] * 2, strict=True)
        ]
        await training.forward_backward_async(data, "importance_sampling")
        await training.optim_step_async(types.AdamParams(learning_rate=1e-3))

    with flatline.tinker.watch(tmp_path / "run"):
        for _ in range(2):
            asyncio.run(step())
    table = Trace.open(tmp_path / "run").rollouts
    assert table["reward"].tolist() == [1.0, 0.0, 1.0, 0.0] * 2
    assert table["weight_version"].tolist() == [0] * 4 + [1] * 4


def test_rewards_without_a_recording_do_nothing():
    flatline.tinker.rewards([1.0], [SimpleNamespace()])


def test_uneven_rewards_are_refused():
    with pytest.raises(TraceError, match="`sequences` has 1"):
        flatline.tinker.rewards([1.0, 0.0], [SimpleNamespace()])


def test_a_second_recording_of_one_process_is_refused(service, tmp_path):
    with (
        flatline.tinker.watch(tmp_path / "a"),
        pytest.raises(TraceError, match="recorded already"),
    ):
        flatline.tinker.watch(tmp_path / "b")


def test_what_goes_wrong_in_a_recording_never_reaches_the_loop(service, tmp_path, monkeypatch):
    monkeypatch.setattr("flatline.live.tinker.watch.row_of", lambda *_: 1 / 0)
    loop, _ = train(service, tmp_path, steps=3)
    assert len(loop.rewards) == 3


def test_without_the_package_the_way_to_get_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ConfigError, match="pip install tinker"):
        flatline.tinker.watch(tmp_path / "run")
