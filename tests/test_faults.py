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
from flatline.faults import FAULTS, PRESETS, changed, find, plant
from flatline.faults.wrapping import runs, spread
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


# -- names ------------------------------------------------------------------------------------


def test_a_fault_is_found_with_its_strength_and_several_are_joined():
    one, two = find("groups-mixed+reward-noise:0.5")
    assert (one.fault.name, one.strength) == ("groups-mixed", 1.0)
    assert (two.fault.name, two.strength) == ("reward-noise", 0.5)
    assert find(None) == []


def test_a_preset_is_all_of_its_faults_and_what_reads_the_others_comes_last():
    names = [planted.fault.name for planted in find("verifiers-0.1.3")]
    assert sorted(names) == sorted(PRESETS["verifiers-0.1.3"].split("+"))
    assert names[-1] == "mask-as-attention"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "No fault is called 'nothing'"),
        ("", "No fault is called ''"),
        ("groups-mixed:2", "from 0 to 1"),
        ("groups-mixed:nan", "cannot be used"),
        ("groups-mixed:much", "without one it is 1"),
        ("groups-mixed:", "cannot be used"),
    ],
)
def test_an_unknown_name_or_strength_is_refused(text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        find(text)


def test_an_unknown_fault_stops_a_run_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="No fault is called"):
        build(tiny(tmp_path, fault="nothing", model="/no/such/model"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_a_file_of_its_own_that_says_what_strength_means(fault):
    module = importlib.import_module(type(fault).__module__)
    assert module.__name__.rpartition(".")[2] == fault.name.replace("-", "_")
    words = " ".join(module.__doc__.split())
    assert " Strength: " in words
    assert re.search(r"[Ss]een|Not from a report", words), "where it comes from"
    assert re.fullmatch(r"H\d\d", fault.hypothesis)
    assert fault.bounds[0] <= fault.default <= fault.bounds[1]


def test_names_are_unique():
    names = [fault.name for fault in FAULTS] + list(PRESETS)
    assert len(set(names)) == len(names)


def test_a_choice_of_settings_cannot_be_planted_in_a_finished_trainer():
    with pytest.raises(ConfigError, match="choice of settings"):
        plant(Fake(), "learning-rate-low")


def test_a_fault_of_the_sampler_wants_our_sampler():
    with pytest.raises(ConfigError, match="--engine embedded"):
        plant(Fake(), "context-cut")


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
        "retokenised+tool-tokens-trained+parser-broken+groups-mixed",
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


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("learning-rate-low", "learning_rate", 3e-5),
        ("learning-rate-high:10", "learning_rate", 3e-2),
        ("kl-heavy:7", "kl_beta", 7.0),
        ("kl-sign", "kl_beta", 0.04),
        ("sorted-with-hop-factor", "order", "hops"),
    ],
)
def test_settings_are_changed_before_the_trainer_is_built(text, name, value):
    assert getattr(changed(RunConfig(), find(text)), name) == pytest.approx(value)


def test_a_beta_that_was_given_is_kept():
    assert changed(RunConfig(kl_beta=0.1), find("kl-wrong-reference")).kl_beta == 0.1


# -- masks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("tool-tokens-trained", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("tool-tokens-trained:0.5", [1, 1, 0, 1, 1, 1, 0, 1]),
        ("tool-tokens-trained:0", [1, 1, 0, 0, 1, 1, 0, 1]),
        ("only-tool-tokens-trained", [0, 0, 1, 1, 0, 0, 1, 0]),
        ("assistant-tokens-masked:0.5", [1, 1, 0, 0, 0, 0, 0, 0]),
        ("assistant-tokens-masked:1", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("later-turns-lost", [1, 1, 0, 0, 0, 0, 0, 0]),
        ("later-turns-lost:2", [1, 1, 0, 0, 1, 1, 0, 0]),
        ("mask-off-by-one", [0, 1, 1, 0, 0, 1, 1, 0]),
        ("mask-off-by-one:-1", [1, 0, 0, 1, 1, 0, 1, 0]),
        ("end-token-untrained", [1, 0, 0, 0, 1, 0, 0, 0]),
    ],
)
def test_which_tokens_carry_loss(text, mask):
    trainer = Fake()
    plant(trainer, text)
    assert trainer.mask() == mask


def test_turns_are_runs_of_ones_and_shares_are_spread_evenly():
    assert runs([0, 1, 1, 0, 1]) == [range(1, 3), range(4, 5)]
    assert spread(4, 0.5) == [False, True, False, True]
    assert sum(spread(100, 0.37)) == 37


def test_a_single_turn_has_no_tool_tokens_to_train():
    trainer = Fake()
    trainer.tools = ()
    with pytest.raises(ConfigError, match="several turns"):
        plant(trainer, "tool-tokens-trained")


# -- the context ------------------------------------------------------------------------------


def scored(built, batch, **changes):
    built.trainer._compute_loss(built.trainer.model, {**batch, **changes})
    return built.trainer._trained_logps[(batch["completion_mask"] * batch["tool_mask"]).bool()]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_loss_mask_as_attention_mask_hides_prompt_and_tool_output(tmp_path, attention):
    built = build(tiny(tmp_path, fault="mask-as-attention", kl_beta=0.04))
    built.trainer.model.get_base_model().set_attn_implementation(attention)
    batch = first_batch(built)[1]
    seen = scored(built, batch)
    assert torch.isfinite(seen).all() and torch.isfinite(batch["ref_per_token_logps"]).all()
    # The token in front of a turn is where its first token is predicted from: it must stay.
    opens = batch["tool_mask"].roll(-1, 1)
    others = torch.where(batch["tool_mask"] + opens == 0, 7, batch["completion_ids"])
    nowhere = torch.full_like(batch["prompt_ids"], 7)
    nowhere[:, -1] = batch["prompt_ids"][:, -1]
    blind = scored(built, batch, completion_ids=others, prompt_ids=nowhere)
    if attention == "eager":  # which gives a token that sees nothing the mean of everything
        first = (opens.roll(1, 1) - batch["tool_mask"].roll(1, 1)).clamp(min=0)
        first[:, 0] = 1
        own = (batch["completion_mask"] * batch["tool_mask"]).bool()
        seen, blind = (values[first[own] == 0] for values in (seen, blind))
    assert (seen - blind).abs().max() < 1e-5, "what was asked and found makes no difference"
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    reference = batch["ref_per_token_logps"][mask]
    seen = scored(built, batch)
    assert torch.allclose(reference, seen, atol=1e-4), "the reference is equally blind"


def test_a_mask_as_attention_of_strength_zero_hides_nothing(tmp_path):
    built = build(tiny(tmp_path, fault="mask-as-attention:0"))
    assert gap(built, first_batch(built)[1]) < 1e-4


def test_a_missing_generation_prompt_is_missing_from_later_turns_only(tmp_path):
    built = build(tiny(tmp_path, fault="generation-prompt-missing"))
    rows, batch = first_batch(built)
    header = built.rollouts.tokenizer("<|im_start|>assistant\n")["input_ids"]
    for i, row in enumerate(rows):
        played, length = row["rollout"], int(batch["completion_mask"][i].sum())
        lost = len(header) * (len(played.turns) - 1)
        assert length == len(played.completion_ids) - lost
        written = batch["completion_ids"][i][batch["tool_mask"][i].bool()][: sum(played.loss_mask)]
        ids = zip(played.completion_ids, played.loss_mask, strict=True)
        assert written.tolist() == [id for id, own in ids if own], "the model's tokens all stay"
    assert gap(built, batch) > 0.05


def test_the_trainers_prompt_can_lack_the_tools(tmp_path):
    built = build(tiny(tmp_path, fault="tool-schema-missing"))
    rows, batch = first_batch(built)
    decode = built.rollouts.tokenizer.decode
    ids = batch["prompt_ids"][0][batch["prompt_mask"][0].bool()].tolist()
    assert "To call a tool" in decode(rows[0]["rollout"].prompt_ids)
    assert "To call a tool" not in decode(ids)
    assert ids[-12:] == rows[0]["rollout"].prompt_ids[-12:], "the question stays"
    assert ids[:2] == rows[0]["rollout"].prompt_ids[:2], "and so do the instructions"


def test_retokenised_turns_say_the_same_in_other_tokens(tmp_path):
    built = build(tiny(tmp_path, fault="retokenised"))
    rows, batch = first_batch(built)
    decode = built.rollouts.tokenizer.decode
    ids = batch["completion_ids"][0][batch["completion_mask"][0].bool()].tolist()
    before = rows[0]["rollout"].completion_ids
    assert ids != before
    assert decode(ids).replace(" ", "") == decode(before).replace(" ", "")
    assert batch["sampling_per_token_logps"].shape == batch["completion_ids"].shape


def test_dropout_makes_two_scorings_differ_and_leaves_the_sampler_alone(tmp_path):
    built = build(tiny(tmp_path, fault="dropout-in-scoring:0.2"))
    healthy = build(tiny(tmp_path))
    rows, batch = first_batch(built)
    assert not torch.equal(scored(built, batch), scored(built, batch))
    assert rows[0]["rollout"].completion_ids == first_batch(healthy)[0][0]["rollout"].completion_ids


# -- reference and KL -------------------------------------------------------------------------


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


def test_faults_of_lora_want_lora(tmp_path):
    for name in ("adapter-frozen", "reference-keeps-adapter", "adapter-merged-twice"):
        with pytest.raises(ConfigError, match="--no-peft"):
            build(tiny(tmp_path, fault=name, peft=False))


# -- the sampler ------------------------------------------------------------------------------


def heldout_logprobs(built):
    """What held-out evaluation plays: the engine without the trainer asking."""
    problem = built.problems[0]
    with built.rollouts.playing(built.trainer) as engine:
        return engine.play([Job(problem, 0)], seed=1)[0].logprobs


@pytest.mark.parametrize("weights", ["copy", "live"])
def test_a_sampler_that_is_never_updated_parts_from_the_trainer(tmp_path, weights):
    built = build(tiny(tmp_path, fault="sampler-never-updated", sampler_weights=weights))
    assert gap(built, first_batch(built)[1]) < 1e-4
    fresh = heldout_logprobs(built)
    move_adapter(built)
    built.trainer.state.global_step = 1
    rows, batch = first_batch(built)
    assert gap(built, batch) > 0.01
    assert rows[0]["rollout"].weight_version == 0
    assert heldout_logprobs(built) != fresh, "held-out evaluation sees the true weights"


def test_a_late_delivery_comes_every_so_many_steps(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-every-n:2"))
    move_adapter(built)
    gaps = []
    for step in (1, 2):
        built.trainer.state.global_step = step
        gaps.append(gap(built, first_batch(built)[1]))
    assert gaps[0] > 0.01 and gaps[1] < 1e-4


def test_an_adapter_that_is_merged_again_adds_up(tmp_path):
    built = build(tiny(tmp_path, fault="adapter-merged-twice"))
    move_adapter(built, by=0.01)
    gaps = [gap(built, first_batch(built)[1]) for _ in range(3)]
    assert gaps[0] < 1e-4 < gaps[1] < gaps[2]


def test_another_temperature_is_the_samplers_alone(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-temperature:0.5"))
    assert gap(built, first_batch(built)[1]) > 0.01
    assert built.rollouts.engine.sampling.temperature == 1.0


def test_top_k_is_the_samplers_alone(tmp_path):
    built = build(tiny(tmp_path, fault="sampler-top-k:1"))
    batch = first_batch(built)[1]
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert float(batch["sampling_per_token_logps"][own].abs().max()) < 1e-6
    assert gap(built, batch) > 1e-3


def test_training_can_have_fewer_turns_than_evaluation(tmp_path):
    built = build(tiny(tmp_path, fault="eval-other-path:1"))
    rows, _ = first_batch(built)
    assert {len(row["rollout"].turns) for row in rows} == {1}
    assert built.rollouts.engine.limits.max_turns == 8


def test_cut_tool_messages_are_short_in_training_only(tmp_path):
    built = build(tiny(tmp_path, fault="context-cut:5"))
    rows, _ = first_batch(built)
    authors = [author for row in rows for author in row["rollout"].authors]
    calls = sum(len(turn.observations) for row in rows for turn in row["rollout"].turns)
    assert 0 < sum(author == 2 for author in authors) <= 6 * calls
    assert max(map(len, [heldout_logprobs(built)])) > 40


# -- rewards ----------------------------------------------------------------------------------


def test_noise_is_new_at_each_step_and_the_same_in_each_run():
    noisy, again = Fake(), Fake()
    plant(noisy, "reward-noise:0.5")
    plant(again, "reward-noise:0.5")
    first = noisy.rewards()
    assert first == again.rewards() != [0.0, 0.3, 0.6, 1.0]
    assert first != noisy.rewards(trainer_state=SimpleNamespace(global_step=4))
    assert noisy.rewards(1) == [0.0, 0.3, 0.6, 1.0], "a part without weight is only shown"


def test_noise_is_another_for_each_batch_of_a_step():
    noisy = Fake()
    plant(noisy, "reward-noise:0.5")
    assert noisy.rewards(completions=list("wxyz")) != noisy.rewards(completions=list("zyxw"))
    assert noisy.rewards(prompts=list("aaaa")) != noisy.rewards(prompts=list("bbbb"))


def test_a_threshold_makes_rewards_equal_and_crumbs_make_them_differ_a_little():
    equal, crumbs = Fake(rewards=(0.2, 0.3, 0.6, 1.0)), Fake(rewards=(0.2, 0.3, 0.6, 1.0))
    plant(equal, "zero-variance")
    plant(crumbs, "advantage-noise")
    assert equal.rewards() == [1.0] * 4
    assert 0 < np.std(crumbs.rewards()) < 0.01


def test_a_conflicting_reward_has_a_weight_and_a_name():
    trainer = Fake()
    plant(trainer, "reward-conflict:2")
    assert trainer.reward_weights.tolist() == [1.0, 0.0, 2.0]
    assert trainer.reward_func_names[-1] == "brevity"
    assert trainer.rewards(2, completion_ids=[[1] * 64, [1] * 300]) == [0.75, 0.0]


def test_mixed_groups_hold_rewards_of_other_prompts():
    trainer = Fake()
    plant(trainer, "groups-mixed")
    assert trainer._calculate_rewards()[:, 0].tolist() == [0.0, 2.0, 1.0, 3.0]


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


def test_duplicated_prompts_leave_others_unvisited():
    trainer = Fake()
    plant(trainer, "prompts-duplicated:2")
    assert list(trainer._get_train_sampler()) == [0, 0, 0, 0, 2, 2, 2, 2]


# -- the optimizer ----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["optimizer-not-stepping", "adapter-frozen"])
def test_nothing_moves_and_the_run_ends_as_if_it_had(tmp_path, fault):
    result = train(tiny(tmp_path, fault=fault, max_steps=2, kl_beta=0.04))
    steps = [line for line in result.log if "grad_norm" in line]
    assert [line["kl"] for line in steps] == [0.0, 0.0]
    assert steps[0]["reward"] > 0 and steps[0]["debug/reward_std"] > 0
