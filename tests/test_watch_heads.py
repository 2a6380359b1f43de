"""`flatline.watch` of policies whose output layer is inside another class, or has no name."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flatline
from flatline.errors import ModelError
from flatline.hypotheses.base import ALARMS
from flatline.rollout.record import Author
from tests.tiny import tiny_model

WORDS, ROWS, PROMPT, LIMIT = 32, 8, 4, 6
END, FORCED = 1, 2


class WithValue(nn.Module):
    """A language model beside a head of values; ids come under a name of its own."""

    def __init__(self):
        super().__init__()
        self.policy = tiny_model(vocab=WORDS, eos_token_id=END, pad_token_id=0)
        self.value = nn.Linear(self.policy.config.hidden_size, 1)

    def forward(self, rows, keep):
        out = self.policy(input_ids=rows, output_hidden_states=True)
        return out.logits, self.value(out.hidden_states[-1][:, -keep:])


class Recurrent(nn.Module):
    """A GRU that hands its state on."""

    def __init__(self, **_):
        super().__init__()
        self.table, self.gru = nn.Embedding(WORDS, 24), nn.GRU(24, 48, batch_first=True)
        self.speak = nn.Linear(48, WORDS)

    def forward(self, tokens, memory=None):
        out, memory = self.gru(self.table(tokens), memory)
        return self.speak(out), memory


class Own(nn.Module):
    """A model of somebody's own whose cache is a list of dicts; its head has no table of its own
    where `tied`."""

    def __init__(self, *, tied=False):
        super().__init__()
        self.table, self.mix = nn.Embedding(WORDS, 24), nn.ModuleList([nn.Linear(24, 24)])
        self.pos_table = nn.Embedding(64, 24)
        nn.init.normal_(self.table.weight, std=0.1)
        self.up = nn.Linear(24, 64)
        self.down = nn.Linear(64, 24)
        self.out = None if tied else nn.Sequential(nn.LayerNorm(24), nn.Linear(24, WORDS))

    def forward(self, tokens, caches=None):
        before = caches[0].get("sum", 0) if caches else 0
        at = torch.arange(tokens.shape[1]) + (caches[0].get("seen", 0) if caches else 0)
        sums = before + self.table(tokens).cumsum(1)
        if caches:
            caches[0] |= {"sum": sums[:, -1:], "seen": int(at[-1]) + 1}
        x = sums + self.pos_table(at)
        x = x + self.down(F.relu(self.up(self.mix[0](x))))
        return F.linear(x, self.table.weight) if self.out is None else self.out(x)


def prompts():
    drawn = torch.Generator().manual_seed(3)
    return torch.randint(4, WORDS, (2, PROMPT), generator=drawn).repeat_interleave(4, 0)


@torch.no_grad()
def by_generate(model):
    found = model.policy.generate(
        input_ids=prompts(), do_sample=True, top_k=0, max_new_tokens=LIMIT, min_new_tokens=LIMIT
    )
    return found


@torch.no_grad()
def by_hand(model, *, forced=False):
    rows = given = prompts()
    memory = [{}] if isinstance(model, Own) else None
    for at in range(LIMIT):
        if isinstance(model, Own):
            logits = model(given, memory)
        else:
            logits, memory = model(given, memory)
        given = torch.multinomial(logits[:, -1].softmax(-1), 1)
        if forced and at == 2:
            given = torch.full_like(given, FORCED)
        rows = torch.cat([rows, given], 1)
    return rows


def all_logits(model, rows):
    out = model(rows, LIMIT) if isinstance(model, WithValue) else model(rows)
    return out[0] if isinstance(out, tuple) else out


def train(model, watch, *, sample, steps=2, forced=False, head=None):
    """REINFORCE with the rewards of the rows' places."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watched = watch(model, optimizer, head)
    for _ in range(steps):
        rows = sample(model, forced=True) if forced else sample(model)
        reward = torch.arange(float(ROWS)) % 4
        if watched is not None:
            watched.rewards(reward.tolist())
        logp = all_logits(model, rows)[:, PROMPT - 1 : -1].log_softmax(-1)
        logp = logp.gather(2, rows[:, PROMPT:, None])[..., 0]
        mask = torch.ones_like(logp)
        if forced:
            mask[:, 2] = 0
        optimizer.zero_grad()
        (-(logp * mask * (reward - 1.5)[:, None]).sum() / mask.sum()).backward()
        optimizer.step()
    if watched is not None:
        watched.close()
    return model


MODELS = {
    "a value head": (WithValue, by_generate),
    "a recurrent policy": (Recurrent, by_hand),
    "a cache of dicts": (Own, by_hand),
    "a tied head": (lambda: Own(tied=True), by_hand),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_head_inside_another_class_is_found_and_tokens_have_the_weights_of_the_loss(
    kind, tmp_path
):
    make, sample = MODELS[kind]
    torch.manual_seed(1)
    model = make()
    alone = train(copy.deepcopy(model), lambda *_: None, sample=sample)
    train(model, lambda m, o, _: flatline.watch(m, o, tmp_path), sample=sample)
    pairs = zip(model.state_dict().items(), alone.state_dict().values(), strict=True)
    assert [name for (name, a), b in pairs if not torch.equal(a, b)] == []
    trace = flatline.Trace.open(tmp_path)
    assert [one for one in trace.caveats if "never had a gradient" not in one] == []
    tokens = trace.tokens([1])
    advantage = np.arange(ROWS) % 4 - 1.5
    expected = advantage[trace.rollouts["rollout"][tokens.rollout_rows].astype(int)][tokens.row]
    known = tokens.trained
    assert known.sum() == ROWS * LIMIT and (tokens.author[known] == Author.MODEL).all()
    assert np.allclose(tokens.weight[known] * ROWS * LIMIT, expected[known], rtol=1e-3)
    assert np.abs(tokens.sampler - tokens.trainer)[known].max() < 1e-4
    assert trace.rollouts["reward"].tolist() == [0, 1, 2, 3] * 4


def test_a_token_that_a_loop_of_ones_own_puts_there_without_a_loss_is_nobodys(tmp_path):
    train(
        Own(), lambda m, o, _: flatline.watch(m, o, tmp_path), sample=by_hand, forced=True, steps=4
    )
    trace = flatline.Trace.open(tmp_path)
    tokens = trace.tokens()
    assert (tokens.author[~tokens.trained] != Author.MODEL).all()
    assert (tokens.ids[~tokens.trained] == FORCED).all()
    found = {one.hypothesis: one for one in flatline.diagnose(trace).findings}
    assert found["H02"].level not in ALARMS


class TwoVoices(nn.Module):
    """Two layers that could both be the head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 24)
        self.say, self.aside = nn.Linear(24, WORDS), nn.Linear(24, WORDS)

    def forward(self, tokens, caches=None):
        return self.say(self.table(tokens)) + 0 * self.aside(self.table(tokens))


def test_where_several_layers_may_make_logits_they_are_listed_and_one_can_be_named(tmp_path):
    model = TwoVoices()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ModelError, match=r"several layers .* `say`, `aside`"):
        flatline.watch(model, optimizer, tmp_path / "unnamed")
    with pytest.raises(ModelError, match="`head=voice` is not part of this TwoVoices"):
        flatline.watch(model, optimizer, tmp_path / "unnamed", head="voice")
    for name, head in (("module", model.say), ("name", "say")):
        with flatline.watch(model, optimizer, tmp_path / name, head=head):
            optimizer.zero_grad()
            model(prompts())[:, :-1].log_softmax(-1)[..., 5].sum().backward()
            optimizer.step()
        assert len(flatline.Trace.open(tmp_path / name).rollouts)


def test_of_two_heads_the_one_that_the_optimizer_trains_is_the_policys(tmp_path):
    model = nn.ModuleDict({"reference": WithValue().requires_grad_(False), "policy": WithValue()})
    optimizer = torch.optim.SGD(model["policy"].parameters(), lr=0.1)
    with flatline.watch(model, optimizer, tmp_path) as watch:
        assert watch._head is model["policy"].policy.lm_head
