"""Planted faults: each does what its defect does, on the trainer it is planted in and no other."""

import importlib
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.utils import logging

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults import FAULTS, find, plant
from flatline.rollout.engine import Job
from flatline.tasks import make_task
from flatline.tasks.base import Score
from flatline.training.environment import (
    environment_factory,
    environment_reward,
    environment_rows,
    tokenizer_for_trl,
)
from flatline.training.models import load_policy
from flatline.training.run import train
from flatline.training.trainer import build

torch.set_num_threads(1)
logging.disable_progress_bar()

TINY = RunConfig(
    datasets="lab,,train[:24]",
    eval_limit=0,
    batch_size=16,
    num_generations=4,
    max_steps=1,
    max_new_tokens=64,
    lora_targets="q_proj,v_proj",
)


def tiny(folder, **changes) -> RunConfig:
    return replace(TINY, output_dir=str(folder), **changes)


def first_batch(built):
    """A batch that was played and scored, as the loss gets it."""
    built.trainer.model.train()
    built.trainer.current_gradient_accumulation_steps = 1  # the training loop would set it
    rows = next(iter(built.trainer.get_train_dataloader()))
    return rows, built.trainer._generate_and_score_completions(rows)


def gap(built, batch) -> float:
    """Mean difference of the sampler's and the trainer's log-probs on trained tokens."""
    built.trainer._compute_loss(built.trainer.model, batch)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    off = batch["sampling_per_token_logps"] - built.trainer._trained_logps
    return float(off.abs()[mask].mean())


def move_adapter(built, by: float = 0.05) -> None:
    with torch.no_grad():
        for name, weight in built.trainer.model.named_parameters():
            if "lora_B" in name:
                weight.add_(by)


class Fake:
    """As much of a trainer as masks and rewards need."""

    tools = ("search",)
    rollout_func = None
    num_generations = 2

    def __init__(self, mask=(1, 1, 0, 0, 1, 1, 0, 1), rewards=(0.0, 0.3, 0.6, 1.0)):
        self.generated = list(mask)
        self.reward_funcs = [lambda **_: list(rewards), lambda **_: list(rewards)]
        self.reward_func_names = ["total", "seen"]
        self.reward_processing_classes = [None, None]
        self.reward_weights = torch.tensor([1.0, 0.0])
        self.args = SimpleNamespace(seed=0, generation_batch_size=4)
        self.accelerator = SimpleNamespace(process_index=0)
        self.train_dataset = SimpleNamespace(column_names=["prompt", "hops"])

    def _generate(self, prompts):
        ids = list(range(len(self.generated)))
        return [[1, 2]], [ids], [self.generated], [""], [[-0.5] * len(ids)], {}, None, []

    def _calculate_rewards(self, *_):
        return torch.tensor([[0.0], [1.0], [2.0], [3.0]])

    def _get_train_sampler(self):
        return [0, 0, 1, 1, 2, 2, 3, 3]

    def mask(self):
        return self._generate([None])[2][0]

    def rewards(self, which: int = 0, **batch):
        state = SimpleNamespace(global_step=3)
        batch = {"prompts": list("abcd"), "trainer_state": state, **batch}
        return self.reward_funcs[which](**batch)


def test_a_fault_is_found_with_its_strength_and_several_are_joined():
    one, two = find("groups-mixed+reward-noise:0.5")
    assert (one.fault.name, one.strength) == ("groups-mixed", 1.0)
    assert (two.fault.name, two.strength) == ("reward-noise", 0.5)
    assert find(None) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "No fault is called 'nothing'"),
        ("groups-mixed:2", "from 0 to 1"),
        ("groups-mixed:much", "without one it is 1"),
    ],
)
def test_an_unknown_name_or_strength_is_refused(text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        find(text)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_a_file_of_its_own_that_says_what_strength_means(fault):
    module = importlib.import_module(type(fault).__module__)
    assert module.__name__.rpartition(".")[2] == fault.name.replace("-", "_")
    words = " ".join(module.__doc__.split())
    assert " Strength: " in words
    assert re.search(r"[Ss]een|Not from a report", words), "where it comes from"
    assert re.fullmatch(r"H\d\d", fault.hypothesis)
    assert fault.bounds[0] <= fault.default <= fault.bounds[1]


@pytest.mark.parametrize(
    ("fault", "tools", "words"),
    [
        ("learning-rate-low", True, "choice of settings"),
        ("context-cut", True, "--engine embedded"),
        ("tool-tokens-trained", False, "several turns"),
        ("earlier-turns-stripped", False, "several turns"),
        ("tool-failing", False, "several turns"),
    ],
)
def test_a_fault_is_refused_by_a_trainer_that_cannot_have_it(fault, tools, words):
    trainer = Fake()
    trainer.tools = trainer.tools if tools else ()
    with pytest.raises(ConfigError, match=words):
        plant(trainer, fault)


def test_another_trainer_stays_healthy(tmp_path):
    sick = build(tiny(tmp_path, fault="mask-as-attention+sampler-temperature"))
    healthy = build(tiny(tmp_path))
    assert type(sick.trainer) is type(healthy.trainer)
    assert gap(healthy, first_batch(healthy)[1]) < 1e-4
    assert gap(sick, first_batch(sick)[1]) > 0.5


@pytest.fixture
def stock(tmp_path, monkeypatch):
    """TRL's own trainer, its own tool loop and its own generation, as anyone would build it."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    task = make_task("musique")
    problems = task.load("lab,,train[:4]", split="train")
    policy = load_policy("lab", device="cpu", dtype="float32")
    return GRPOTrainer(
        model=policy.model,
        processing_class=tokenizer_for_trl(policy.tokenizer),
        reward_funcs=[environment_reward],
        environment_factory=environment_factory(task, problems),
        train_dataset=Dataset.from_list(environment_rows(task, problems)),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=200,
            max_steps=1,
            beta=0.04,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "mask-as-attention+generation-prompt-missing+tool-schema-missing",
        "kl-wrong-reference+kl-sign+dropout-in-scoring+reward-noise+optimizer-not-stepping",
    ],
)
def test_faults_can_be_planted_in_a_trainer_of_stock_trl(stock, text):
    before = [weight.detach().clone() for weight in stock.model.parameters()]
    plant(stock, text)
    stock.train()
    line = next(line for line in stock.state.log_history if "grad_norm" in line)
    assert np.isfinite(line["grad_norm"]) and line["kl"] >= 0
    same = all(map(torch.equal, before, stock.model.parameters()))
    assert same == ("optimizer-not-stepping" in text)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("tool-tokens-trained", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("tool-tokens-trained:0.5", [1, 1, 0, 1, 1, 1, 0, 1]),
        ("only-tool-tokens-trained", [0, 0, 1, 1, 0, 0, 1, 0]),
        ("assistant-tokens-masked:0.5", [1, 1, 0, 0, 0, 0, 0, 0]),
        ("later-turns-lost", [1, 1, 0, 0, 0, 0, 0, 0]),
        ("mask-off-by-one", [0, 1, 1, 0, 0, 1, 1, 0]),
        ("end-token-untrained", [1, 0, 0, 0, 1, 0, 0, 0]),
    ],
)
def test_which_tokens_carry_loss(text, mask):
    trainer = Fake()
    plant(trainer, text)
    assert trainer.mask() == mask


def scored(built, batch, **changes):
    built.trainer._compute_loss(built.trainer.model, {**batch, **changes})
    return built.trainer._trained_logps[(batch["completion_mask"] * batch["tool_mask"]).bool()]


def test_the_loss_mask_as_attention_mask_hides_prompt_and_tool_output(tmp_path):
    built = build(tiny(tmp_path, fault="mask-as-attention"))
    batch = first_batch(built)[1]
    seen = scored(built, batch)
    # The token in front of a turn is where its first token is predicted from: it must stay.
    opens = batch["tool_mask"].roll(-1, 1)
    others = torch.where(batch["tool_mask"] + opens == 0, 7, batch["completion_ids"])
    nowhere = torch.full_like(batch["prompt_ids"], 7)
    nowhere[:, -1] = batch["prompt_ids"][:, -1]
    blind = scored(built, batch, completion_ids=others, prompt_ids=nowhere)
    assert torch.isfinite(seen).all() and (seen - blind).abs().max() < 1e-5


def test_retokenised_turns_say_the_same_in_other_tokens(tmp_path):
    built = build(tiny(tmp_path, fault="retokenised"))
    rows, batch = first_batch(built)
    decode = built.rollouts.tokenizer.decode
    ids = batch["completion_ids"][0][batch["completion_mask"][0].bool()].tolist()
    before = rows[0]["rollout"].completion_ids
    assert ids != before
    assert decode(ids).replace(" ", "") == decode(before).replace(" ", "")
    assert batch["sampling_per_token_logps"].shape == batch["completion_ids"].shape


def test_dropout_makes_two_scorings_differ(tmp_path):
    built = build(tiny(tmp_path, fault="dropout-in-scoring:0.2"))
    batch = first_batch(built)[1]
    assert not torch.equal(scored(built, batch), scored(built, batch))


def test_a_wrong_reference_has_kl_from_the_start_and_leaves_the_policy_alone(tmp_path):
    built = build(tiny(tmp_path, fault="kl-wrong-reference"))
    before = {n: p.detach().clone() for n, p in built.trainer.model.named_parameters()}
    batch = first_batch(built)[1]
    assert gap(built, batch) < 1e-4
    assert built.trainer._metrics["train"]["kl"][-1] > 0.1
    after = dict(built.trainer.model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_kl_with_the_wrong_sign_counts_for_the_loss_only():
    trainer = SimpleNamespace(beta=0.5)
    trainer._compute_loss = lambda model, inputs: trainer.beta
    find("kl-sign:2")[0].fault.plant(trainer, 2.0)
    assert trainer._compute_loss(None, {}) == -1.0
    assert trainer.beta == 0.5


@pytest.mark.parametrize("fault", [None, "reference-keeps-adapter"])
def test_a_reference_with_the_adapter_on_is_the_policy(tmp_path, fault):
    built = build(tiny(tmp_path, fault=fault, kl_beta=0.04))
    move_adapter(built)
    gap(built, first_batch(built)[1])
    kl = built.trainer._metrics["train"]["kl"][-1]
    assert kl <= 1e-9 if fault else kl > 1e-6


def heldout_logprobs(built):
    """What held-out evaluation plays: the engine without the trainer asking."""
    problem = built.problems[0]
    with built.rollouts.playing(built.trainer) as engine:
        return engine.play([Job(problem, 0)], seed=1)[0].logprobs


NEVER = "sampler-never-updated"


@pytest.mark.parametrize(
    ("fault", "changes", "least", "apart"),
    [
        (NEVER, {"sampler_weights": "copy"}, 0.01, [False, True, True]),
        (NEVER, {"sampler_weights": "live"}, 0.01, [False, True, True]),
        ("sampler-every-n:2", {}, 0.01, [False, True, False]),
        ("merge-rounded", {}, 1e-3, [False, True]),
        ("prefix-cache-stale:2", {}, 1e-3, [False, True, False]),
        ("sampler-rounded", {}, 5e-3, [True]),
        ("sampler-rounded:23", {}, 5e-3, [False]),
        ("sampler-temperature:0.5", {}, 0.01, [True]),
        ("sampler-top-k:1", {}, 1e-3, [True]),
        ("generation-prompt-missing", {}, 0.05, [True]),
        ("mask-as-attention:0", {}, 0.5, [False]),
    ],
)
def test_sampler_and_trainer_part_where_and_when_a_fault_acts(
    tmp_path, fault, changes, least, apart
):
    """One batch for each step; weights move after the first."""
    built = build(tiny(tmp_path, fault=fault, **changes))
    for step, parted in enumerate(apart):
        if step == 1:
            move_adapter(built)
        built.trainer.state.global_step = step
        found = gap(built, first_batch(built)[1])
        assert found > least if parted else found < 1e-4, (step, found)


@pytest.mark.parametrize("fault", [NEVER, "merge-rounded"])
def test_held_out_evaluation_sees_the_true_weights(tmp_path, fault):
    built = build(tiny(tmp_path, fault=fault))
    fresh = heldout_logprobs(built)
    move_adapter(built)
    assert heldout_logprobs(built) != fresh


def test_an_adapter_that_is_merged_again_adds_up(tmp_path):
    built = build(tiny(tmp_path, fault="adapter-merged-twice"))
    move_adapter(built, by=0.01)
    gaps = [gap(built, first_batch(built)[1]) for _ in range(3)]
    assert gaps[0] < 1e-4 < gaps[1] < gaps[2]


def test_noise_is_new_at_each_step_and_the_same_in_each_run():
    noisy, again = Fake(), Fake()
    plant(noisy, "reward-noise:0.5")
    plant(again, "reward-noise:0.5")
    first = noisy.rewards()
    assert first == again.rewards() != [0.0, 0.3, 0.6, 1.0]
    assert first != noisy.rewards(trainer_state=SimpleNamespace(global_step=4))
    assert noisy.rewards(1) == [0.0, 0.3, 0.6, 1.0], "a part without weight is only shown"


def test_a_threshold_makes_rewards_equal_and_crumbs_make_them_differ_a_little():
    equal, crumbs = Fake(rewards=(0.2, 0.3, 0.6, 1.0)), Fake(rewards=(0.2, 0.3, 0.6, 1.0))
    plant(equal, "zero-variance")
    plant(crumbs, "advantage-noise")
    assert equal.rewards() == [1.0] * 4
    assert 0 < np.std(crumbs.rewards()) < 0.01


def test_mixed_groups_hold_rewards_of_other_prompts_and_duplicated_prompts_hide_others():
    trainer = Fake()
    plant(trainer, "groups-mixed+prompts-duplicated:2")
    assert trainer._calculate_rewards()[:, 0].tolist() == [0.0, 2.0, 1.0, 3.0]
    assert list(trainer._get_train_sampler()) == [0, 0, 0, 0, 2, 2, 2, 2]


def test_a_broken_parser_gives_nothing_for_right_answers():
    trainer = Fake(rewards=(0.4, 0.9))
    plant(trainer, "parser-broken:1")
    plays = [SimpleNamespace(score=Score(reward=r, parts={"exact_match": r > 0.5})) for r in (0, 1)]
    for which in (0, 1):
        assert trainer.rewards(which, prompts=["a", "b"], rollout=plays) == [0.4, 0.0]


def test_the_hop_factor_is_half_the_hops():
    trainer = Fake(rewards=(1.0, 1.0))
    plant(trainer, "sorted-with-hop-factor")
    assert trainer.rewards(hops=[2, 4]) == [1.0, 2.0]


@pytest.mark.parametrize("fault", ["optimizer-not-stepping", "adapter-frozen"])
def test_nothing_moves_and_the_run_ends_as_if_it_had(tmp_path, fault):
    result = train(tiny(tmp_path, fault=fault, max_steps=2, kl_beta=0.04))
    steps = [line for line in result.log if "grad_norm" in line]
    assert [line["kl"] for line in steps] == [0.0, 0.0]
    assert steps[0]["reward"] > 0 and steps[0]["debug/reward_std"] > 0
