"""verl's objects as its v1 trainer has them, without verl: what is heard of them, and written.

Shapes are those of 0.9.1; `tests/quality/test_verl.py` runs verl's real code.
"""

import asyncio
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from flatline.live.hooks import Guard
from flatline.live.verl.install import hear
from flatline.live.verl.rows import Rollout, join, placed
from flatline.live.verl.sampler import DRAWN, SamplerEar
from flatline.live.verl.settings import settings
from flatline.live.verl.trainer import ASK, TrainerEar
from flatline.live.verl.worker import WorkerEar
from flatline.rollout.record import Author
from flatline.trace import Trace
from tests.tiny import tokenizer_with

PROMPT, ANSWER = [5, 6, 7], [11, 12, 13]
CONFIG = {
    "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True},
    "data": {"train_batch_size": 2, "max_response_length": 4},
    "trainer": {"total_training_steps": 5},
    "actor_rollout_ref": {
        "actor": {
            "loss_agg_mode": "token-mean",
            "ppo_mini_batch_size": 2,
            "use_kl_loss": True,
            "kl_loss_coef": 0.01,
            "optim": {"lr": 1e-4},
            "fsdp_config": {"mixed_precision": {"param_dtype": "fp32"}},
        },
        "rollout": {"n": 2, "temperature": 1.0, "response_length": 4, "name": "vllm"},
    },
}


def jagged(rows, dtype=torch.float32):
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def fields(**changed):
    row = {
        "uid": "p0",
        "prompts": PROMPT,
        "responses": ANSWER,
        "response_mask": [1, 1, 1],
        "rollout_log_probs": [-0.1, -0.2, -0.3],
        "old_log_probs": [-0.1, -0.2, -0.3],
        "advantages": [0.5, 0.5, 0.5],
        "rm_scores": [0.0, 0.0, 1.0],
        "extra_fields": {
            DRAWN: [(PROMPT, ANSWER, [-0.1, -0.2, -0.3])],
            "reward_extra_info": {"score": 1.0, "correct": 1.0},
        },
        "reward_model": {"ground_truth": "42"},
    }
    return row | changed


def heard(rollout, weight):
    rollout.heard = {"logps": np.array([-0.1, -0.2, -0.3]), "weight": np.array(weight)}
    return rollout


# -- one rollout


def test_a_token_that_the_loss_does_not_move_is_not_trained_whatever_the_mask_says():
    one = heard(Rollout(fields(), {}), [0.1, 0.1, 0.0])
    assert one.trained.tolist() == [1, 1, 0]


def test_a_token_whose_ratio_was_clipped_is_trained_all_the_same():
    one = heard(Rollout(fields(old_log_probs=[-0.1, -0.2, -0.9]), {}), [0.1, 0.1, 0.0])
    assert one.trained.tolist() == [1, 1, 1]


def test_without_an_advantage_the_mask_says_what_is_trained():
    one = heard(Rollout(fields(advantages=[0.0, 0.0, 0.0]), {}), [0.0, 0.0, 0.0])
    assert one.trained.tolist() == [1, 1, 1]


def test_what_stands_between_two_answers_of_the_server_is_not_the_models():
    turns = [(PROMPT, [11], [-0.1]), ([*PROMPT, 11, 20, 21], [12], [-0.2])]
    row = fields(responses=[11, 20, 21, 12], response_mask=[1, 0, 0, 1])
    row["rollout_log_probs"] = [-0.1, 0.0, 0.0, -0.2]
    one = Rollout(row | {"extra_fields": {DRAWN: turns}}, {})
    model, tool = Author.MODEL, Author.TOOL
    assert one.author.tolist() == [model, tool, tool, model]
    assert np.isnan(one.sampler).tolist() == [False, True, True, False]
    assert one.otherwise() == {"as_sampled": 1}


def test_other_ids_than_were_drawn_are_told():
    one = Rollout(fields(responses=[11, 99, 13]), {})
    assert one.otherwise()["as_sampled"] == 0
    assert one.otherwise()["sampled_ids"].tolist() == ANSWER


def test_a_server_that_was_not_heard_leaves_authors_unknown():
    one = Rollout(fields(extra_fields={}), {})
    assert one.author is None
    assert one.otherwise() == {"as_sampled": None}
    assert one.sampler.tolist() == pytest.approx([-0.1, -0.2, -0.3])


def test_rollouts_of_a_prompt_stand_together_though_verl_spreads_them():
    spread = [Rollout(fields(uid=uid), {}) for uid in ("a", "b", "a", "b")]
    assert [(place.number, place.group) for place, _ in placed(spread, 3)] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    ]


def test_two_equal_rollouts_each_get_one_of_the_passes():
    twins = [Rollout(fields(), {}), Rollout(fields(), {})]
    ids = np.array(ANSWER, np.int32)
    join(twins, [{"uid": "p0", "ids": ids, "logps": at} for at in (1, 2)])
    assert [one.heard["logps"] for one in twins] == [1, 2]


# -- the rollout server's client


def test_all_turns_of_a_request_travel_with_its_first_answer():
    ear = SamplerEar(Guard())

    async def asked(prompt, ids):
        answer = SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={})

        async def original(request_id, **_):
            return answer

        return await ear.generate(original, "request", prompt_ids=prompt, sampling_params={})

    first = asyncio.run(asked([1, 2], [3]))
    asyncio.run(asked([1, 2, 3, 9], [4, 5]))
    assert [list(turn[1]) for turn in first.extra_fields[DRAWN]] == [[3], [4, 5]]


# -- the worker


class FakeEngine:
    """An engine with two weights: `train_batch` is `BaseEngine`'s, in the same order."""

    def __init__(self):
        self.module = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def train_batch(self, data, loss_function):
        self.optimizer.zero_grad()
        logps = jagged([[-1.0, -1.0, -0.1, -0.2, -0.3, 0.0]]) * self.module.weight[0, 0].abs()
        loss, metrics = loss_function(model_output={"log_probs": logps}, data=data, dp_group=None)
        loss.backward()
        self.optimizer_step()
        return {"loss": float(loss.detach()), "metrics": metrics}

    def optimizer_step(self):
        self.optimizer.step()
        return 1.0


def micro_batch():
    return {
        "uid": np.array(["p0"], dtype=object),
        "prompts": jagged([PROMPT], torch.int64),
        "responses": jagged([ANSWER], torch.int64),
    }


def only_the_first_two(model_output, data, dp_group):
    """A loss that leaves the end token out."""
    return -model_output["log_probs"].values()[2:4].sum(), {}


def test_a_worker_hears_log_probs_and_what_the_loss_does_with_each():
    engine = FakeEngine()
    ear = WorkerEar(SimpleNamespace(actor=SimpleNamespace(engine=engine)), Guard())
    scale = float(engine.module.weight.detach().abs())
    engine.train_batch(micro_batch(), only_the_first_two)
    found = ear.heard()
    assert found["rows"][0]["logps"].tolist() == pytest.approx(
        [-0.1 * scale, -0.2 * scale, -0.3 * scale]
    )
    assert found["rows"][0]["weight"].tolist() == [1.0, 1.0, 0.0]
    assert {row["name"] for row in found["weights"]} == {"weight", "bias"}
    assert found["updates"] == 1
    assert ear.heard()["rows"] == []


def test_a_worker_that_is_heard_trains_the_same_weights_bit_for_bit():
    torch.manual_seed(3)
    alone = FakeEngine()
    torch.manual_seed(3)
    watched = FakeEngine()
    WorkerEar(SimpleNamespace(actor=SimpleNamespace(engine=watched)), Guard())
    for engine in (alone, watched):
        engine.train_batch(micro_batch(), only_the_first_two)
    assert torch.equal(alone.module.weight, watched.module.weight)


def test_what_is_sent_to_the_server_passes_by_unchanged():
    sent = {}

    async def update_weights(weights, **_):
        sent.update(weights)

    rollout = SimpleNamespace(update_weights=update_weights)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=FakeEngine()), rollout=rollout)
    ear = WorkerEar(worker, Guard())
    tensor = torch.tensor([3.0, 4.0])
    asyncio.run(rollout.update_weights(iter([("w", tensor)]), global_steps=1))
    assert sent["w"] is tensor
    assert ear.heard()["sent"] == {"w": 5.0}


# -- the trainer


class FakeTrainer:
    """`PPOTrainer`, as far as it is listened to."""

    def __init__(self):
        self.tokenizer, self.global_steps = tokenizer_with(), 1
        self.actor_rollout_wg = SimpleNamespace(**{ASK: self._heard})

    def _heard(self):
        ids = np.array(ANSWER, np.int32)
        row = {"ids": ids, "logps": np.full(3, -0.2, np.float32), "weight": np.ones(3, np.float32)}
        rows = [{**row, "uid": uid} for uid in ("a", "a", "b", "b")]
        return [
            {"rows": rows, "weights": [], "updates": 1, "sent": {"w": float(self.global_steps)}}
        ]

    def _update_actor(self, batch, metrics):
        return batch

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics["actor/loss"] = 0.5
        metrics["training/off_policy/trajectory_spans/mean"] = 1.0
        metrics["response_length/clip_ratio"] = 0.9

    def fit(self, manager):
        for step in (1, 2):
            self.global_steps = step
            tags = [{"min_global_steps": step - 1}] * 4 + [{"is_padding": True}]
            batch = SimpleNamespace(keys=list("uvwxy"), partition_id="train", tags=tags)
            metrics = {}
            self._update_actor(batch, metrics)
            self._compute_metrics(batch, metrics, {}, step, 0)
        return "fitted"


@pytest.fixture
def queue(monkeypatch):
    """`transfer_queue`, with one batch of two prompts in it, and a row that only fills it up."""
    tensors = {
        "prompts": jagged([PROMPT] * 5, torch.int64),
        "responses": jagged([ANSWER] * 5, torch.int64),
        "response_mask": jagged([[1, 1, 1]] * 5, torch.int64),
        "rollout_log_probs": jagged([[-0.1, -0.2, -0.3]] * 5),
        "old_log_probs": jagged([[-0.1, -0.2, -0.3]] * 5),
        "advantages": jagged([[0.5] * 3] * 5),
        "rm_scores": jagged([[0.0, 0.0, 1.0], [0.0] * 3] * 2 + [[0.0] * 3]),
        "uid": np.array(["a", "a", "b", "b", "b"], dtype=object),
    }
    module = ModuleType("transfer_queue")
    module.kv_batch_get = lambda keys, partition_id, select_fields: tensors
    monkeypatch.setitem(sys.modules, "transfer_queue", module)


def test_a_run_is_recorded_with_rollouts_tokens_steps_and_what_was_sent(tmp_path, queue):
    trainer = FakeTrainer()
    TrainerEar(trainer, str(tmp_path / "run"), CONFIG)
    assert trainer.fit(None) == "fitted"
    trace = Trace.open(tmp_path / "run")
    assert trace.run["source"] == "verl"
    assert trace.steps["step"].tolist() == [1, 2]
    assert trace.steps["reward"].tolist() == [0.5, 0.5]
    assert trace.steps["loss"].tolist() == [0.5, 0.5]
    assert trace.steps["truncated_share"].tolist() == [0.0, 0.0]
    assert trace.steps["logprob_gap"].tolist() == pytest.approx([0.2 / 3, 0.2 / 3])
    assert trace.rollouts["group"].tolist() == [0, 0, 1, 1] * 2
    assert trace.rollouts["weight_version"].tolist() == [0] * 4 + [1] * 4
    assert trace.tokens([1]).trained.all()
    assert trace.steps["metrics"][1]["flatline/sent_changed_share"] == 1.0


def test_an_error_of_the_recording_never_reaches_the_training(tmp_path, monkeypatch, capsys):
    module = ModuleType("transfer_queue")  # without `kv_batch_get`
    monkeypatch.setitem(sys.modules, "transfer_queue", module)
    trainer = FakeTrainer()
    TrainerEar(trainer, str(tmp_path / "run"), CONFIG)
    assert trainer.fit(None) == "fitted"
    assert "training goes on" in capsys.readouterr().err


# -- putting it in


def test_the_classes_of_verl_tell_when_one_of_them_is_ready(tmp_path, monkeypatch):
    module = ModuleType("omegaconf")
    module.OmegaConf = SimpleNamespace(to_container=lambda config, resolve: config)
    monkeypatch.setitem(sys.modules, "omegaconf", module)

    class Trainer(FakeTrainer):
        config = CONFIG

        def init(self):
            return "ready"

    class Worker:
        def init_model(self):
            self.actor = SimpleNamespace(engine=FakeEngine())

    class Client:
        async def generate(self, request_id, *, prompt_ids, sampling_params):
            return SimpleNamespace(token_ids=[3], log_probs=None, extra_fields={})

    kinds = {"trainer": Trainer, "worker": Worker, "client": Client}
    hear(kinds, str(tmp_path / "run"), lambda method: method)
    trainer, worker = Trainer(), Worker()
    assert trainer.init() == "ready"
    assert (tmp_path / "run" / "run.json").is_file()
    assert getattr(worker, ASK)()["rows"] == []
    worker.init_model()
    worker.actor.engine.train_batch(micro_batch(), only_the_first_two)
    assert len(getattr(worker, ASK)()["rows"]) == 1
    answer = asyncio.run(Client().generate("r", prompt_ids=[1], sampling_params={}))
    assert answer.extra_fields[DRAWN] == [([1], [3], None)]


def test_settings_are_those_of_a_trace():
    found = settings(CONFIG)
    assert found["num_generations"] == 2
    assert found["beta"] == 0.01
    assert found["loss_type"] == "dapo"
    assert found["precision"] == "float32"
    assert found["max_completion_length"] == 4
    assert found["learning_rate"] == 1e-4
    assert found["algorithm"] == "grpo"


def test_a_checkup_can_be_asked_for_where_there_is_no_trl():
    """verl 0.9.1 does not start beside a new TRL."""
    code = "import sys; sys.modules['trl'] = None; import flatline.diagnosis.checkup, flatline.verl"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_folder_that_is_said_and_verl_goes_on(monkeypatch, capsys):
    from flatline.live.verl.install import install

    monkeypatch.delenv("FLATLINE_RUN", raising=False)
    assert install() is False
    assert "FLATLINE_RUN=runs/x" in capsys.readouterr().err


def test_where_verl_is_another_release_that_is_said_and_it_goes_on(monkeypatch, capsys, tmp_path):
    from flatline.live.verl.install import install

    monkeypatch.setenv("FLATLINE_RUN", str(tmp_path / "run"))
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.v1.trainer_base", ModuleType("another"))
    assert install() is False
    assert "nothing is recorded" in capsys.readouterr().err
