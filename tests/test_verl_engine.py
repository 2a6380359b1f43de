"""A checkup of an engine with the methods of verl's: `infer_batch`, `train_batch`, and the rest.

The few functions of verl that it calls stand here in the same shape; `tests/quality/test_verl.py`
runs verl's own.
"""

import sys
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from flatline.diagnosis.checkup import checkup
from flatline.hypotheses import HYPOTHESES
from flatline.live.verl.engine import Engine
from flatline.live.verl.sampler import DRAWN
from tests.test_verl_live import CONFIG
from tests.tiny import tiny_model, tokenizer_with

PROMPTS, GROUP, TOKENS = 8, 2, 8
LOOKED_AT = ("H02", "H06", "H15", "H23", "H25", "H26", "H28")


class Data(dict):
    """A TensorDict as far as it is used."""

    def select(self, rows):
        return Data(
            {name: _part(value, rows) for name, value in self.items() if name not in NOT_BY_ROW}
        )


NOT_BY_ROW = {
    *("temperature", "global_batch_size", "global_token_num", "use_remove_padding"),
    *("use_dynamic_bsz", "micro_batch_size_per_gpu", "compute_loss"),
}


def _part(value, rows):
    if isinstance(value, np.ndarray):
        return value[rows]
    return torch.nested.as_nested_tensor([value.unbind()[r] for r in rows], layout=torch.jagged)


def get_tensordict(tensor_dict):
    return Data(tensor_dict | {"uid": np.array(tensor_dict["uid"], dtype=object)})


def compute_advantage(data, adv_estimator, norm_adv_by_std_in_grpo):
    scores = data.batch["token_level_rewards"].sum(1)
    groups = np.unique(data.batch["uid"], return_inverse=True)[1]
    found = torch.zeros_like(scores)
    for group in set(groups):
        own = scores[groups == group]
        found[groups == group] = (own - own.mean()) / (own.std() + 1e-6)
    return SimpleNamespace(batch={"advantages": found[:, None] * data.batch["response_mask"]})


@pytest.fixture(autouse=True)
def verl(monkeypatch):
    made = {
        "verl": {
            "DataProto": SimpleNamespace(from_single_dict=lambda d: SimpleNamespace(batch=d)),
        },
        "verl.utils": {},
        "verl.utils.tensordict_utils": {
            "get_tensordict": get_tensordict,
            "assign_non_tensor": lambda data, **more: data.update(more),
        },
        "verl.trainer": {},
        "verl.trainer.ppo": {},
        "verl.trainer.ppo.ray_trainer": {"compute_advantage": compute_advantage},
    }
    for name, values in made.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def loss_of(model_output, data, dp_group, config):
    """Plain policy gradient over all tokens of the update, and k3 to the reference."""
    parts = zip(
        model_output["log_probs"].unbind(),
        data["prompts"].unbind(),
        data["advantages"].unbind(),
        data["response_mask"].unbind(),
        data["ref_log_prob"].unbind(),
        strict=True,
    )
    total = 0.0
    for logps, prompt, advantage, mask, reference in parts:
        own = logps[len(prompt) - 1 : -1]
        far = reference - own
        kl = far.exp() - far - 1
        total = total + ((config.kl_loss_coef * kl - advantage * own) * mask).sum()
    return total / config.tokens, {}


class FakeEngine:
    def __init__(self, model):
        self.module = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        self.engine_config = SimpleNamespace(micro_batch_size_per_gpu=4)

    @contextmanager
    def train_mode(self, zero_grad_on_exit=True):
        self.module.train()
        yield
        if zero_grad_on_exit:
            self.optimizer_zero_grad()

    @contextmanager
    def eval_mode(self):
        self.module.eval()
        yield

    def optimizer_zero_grad(self):
        self.optimizer.zero_grad()

    def optimizer_step(self):
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()

    def infer_batch(self, data):
        with torch.no_grad():
            return {"model_output": {"log_probs": self._logps(data)}}

    def forward_backward_batch(self, data, loss_function, forward_only):
        size, rows, losses = data["micro_batch_size_per_gpu"], len(data["uid"]), []
        for at in range(0, rows, size):
            part = data.select(list(range(at, min(at + size, rows))))
            output = {"log_probs": self._logps(part)}
            loss, _ = loss_function(model_output=output, data=part, dp_group=None)
            loss.backward()
            losses.append(float(loss.detach()))
        return {"loss": losses}

    def train_batch(self, data, loss_function):
        self.optimizer_zero_grad()
        found = self.forward_backward_batch(data, loss_function, forward_only=False)
        self.optimizer_step()
        return found

    def _logps(self, data):
        """Rows without padding; the last of each has no token behind it."""
        found = [self._row(ids) for ids in data["input_ids"].unbind()]
        return torch.nested.as_nested_tensor(found, layout=torch.jagged)

    def _row(self, ids):
        logps = self.module(input_ids=ids[None]).logits[0].log_softmax(-1)
        behind = torch.cat([ids[1:], ids[:1]])
        return logps.gather(1, behind[:, None])[:, 0]


class Sampler:
    """A copy of the model in another place."""

    def __init__(self, engine, *, stale, end_trained):
        self._engine, self._stale, self._end_trained = engine, stale, end_trained
        self._model = tiny_model(initializer_range=0.3).eval()
        self._drawn = torch.Generator().manual_seed(0)

    def send(self, step):
        if not self._stale:
            self._model.load_state_dict(self._engine.module.state_dict())

    def play(self, prompts):
        return [self._one(prompt, at) for prompt in prompts for at in range(GROUP)]

    @torch.no_grad()
    def _one(self, prompt, at):
        ids, logps = list(prompt), []
        for _ in range(TOKENS):
            known = self._model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            token = int(torch.multinomial(known.exp(), 1, generator=self._drawn))
            ids.append(token)
            logps.append(float(known[token]))
        answer = ids[len(prompt) :]
        mask = [1] * (TOKENS - 1) + [int(self._end_trained)]
        return SimpleNamespace(
            prompt_ids=list(prompt),
            response_ids=answer,
            response_mask=mask,
            response_logprobs=logps,
            reward_score=float(at) + 0.01 * answer[0],
            extra_fields={DRAWN: [(list(prompt), answer, logps)]},
        )


def look(*, stale=False, end_trained=True):
    engine = FakeEngine(tiny_model(initializer_range=0.3))
    reference = FakeEngine(tiny_model(initializer_range=0.3))
    sampler = Sampler(engine, stale=stale, end_trained=end_trained)
    config = SimpleNamespace(kl_loss_coef=0.01, tokens=PROMPTS * GROUP * TOKENS)
    before = {name: value.clone() for name, value in engine.module.state_dict().items()}
    report = checkup(
        Engine(
            worker=SimpleNamespace(engine=engine, loss_fn=partial(loss_of, config=config)),
            reference=SimpleNamespace(engine=reference),
            config=CONFIG,
            tokenizer=tokenizer_with(),
            prompts=[[5 + at, 6, 7, 8][at % 2 :] for at in range(PROMPTS)],
            play=sampler.play,
            send=sampler.send,
        ),
        hypotheses=[one for one in HYPOTHESES if one.id in LOOKED_AT],
    )
    after = engine.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return {one.hypothesis: one for one in report.findings}


def test_a_healthy_engine_is_looked_at_without_an_alarm_and_left_bit_for_bit():
    found = look()
    assert {code: one.text for code, one in found.items() if one.level.value != "ok"} == {}


def test_a_rollout_server_that_keeps_its_weights_is_named():
    assert look(stale=True)["H06"].level.value == "fault"


def test_an_end_token_without_a_loss_is_named():
    assert look(end_trained=False)["H02"].level.value == "fault"
