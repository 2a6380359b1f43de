"""Every hypothesis has a remedy or says why not; a remedy repairs its fault and nothing else."""

import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES
from flatline.live.hooks import swapped
from flatline.live.trl.subject import TrlSubject
from flatline.remedies import REMEDIES, WITHOUT, apply, remedied

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "scripts"))

import foreign_script
from foreign_faults import faulty
from foreign_script import build
from prepare import WORDS, prompt, tokenizer

from tests.tiny import tiny_model

torch.set_num_threads(1)
foreign_script.ADAPTED = ["q_proj", "v_proj"]  # on all seven of a block, half of a pass is theirs

SETTINGS = {
    "H01": {"scale_rewards": "none"},
    "H22": {"vllm_importance_sampling_mode": "token_truncate"},
    "H27": {"max_grad_norm": 1.0},
    "H29": {"num_iterations": 1},
    "H35": {"loss_type": "dr_grpo"},
}
"""What a script that has a remedy's setting already asks for."""
LONGER = ("H04", "H13")
"""They change every run that a limit cuts short; a healthy one ends its completions before it."""


def correct(completions, answer, **kwargs):
    pairs = zip(completions, answer, strict=True)
    return [float(gold in text.split()) for text, gold in pairs]


def odd(completions, **kwargs):
    return [float(len(text) % 2) for text in completions]


def rows():
    """Prompts of unequal lengths, so that there is padding."""
    return [
        {"prompt": "? " * (b % 4) + prompt(a, b), "answer": str(a + b)}
        for a in range(6)
        for b in range(0, 10, 3)
    ]


def trainer_of(folder, kind=GRPOTrainer, reward=correct, **asked):
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "num_iterations": 2,
        "max_completion_length": 6,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "beta": 0.0,
        "loss_type": "dapo",
        "temperature": 0.8,
        "seed": 3,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    model = tiny_model(vocab=len(WORDS), eos_token_id=1, pad_token_id=0)
    return kind(
        model=model,
        processing_class=tokenizer(),
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(folder), **settings | asked),
        train_dataset=Dataset.from_list(rows()),
    )


def trained(trainer):
    trainer.train()
    return [weight.detach().clone() for weight in trainer.model.parameters()]


@cache
def untreated(kind=GRPOTrainer, reward=correct, **asked):
    """The weights that a training without remedy ends with."""
    with tempfile.TemporaryDirectory() as folder:
        return trained(trainer_of(Path(folder), kind, reward, **asked))


def close(some, others):
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(some, others, strict=True))


def alike(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_every_hypothesis_has_a_remedy_or_says_why_not():
    codes = {one.id for one in HYPOTHESES}
    assert codes == REMEDIES.keys() | WITHOUT.keys()
    assert not REMEDIES.keys() & WITHOUT.keys()
    assert all(text.endswith(".") and len(text) > 40 for text in WITHOUT.values())


class SoonEnded(GRPOTrainer):
    """Nearly every token ends a completion, so that no limit cuts one short."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generation_config.eos_token_id = list(range(1, len(WORDS) - 2))


OTHERS = [code for code in REMEDIES if code not in LONGER]


@pytest.mark.parametrize("codes", [OTHERS, LONGER])
def test_a_healthy_trainer_is_trained_bit_for_bit_as_without_them(tmp_path, codes):
    how = (SoonEnded, odd) if codes is LONGER else (GRPOTrainer, correct)
    asked = {name: value for code in codes for name, value in SETTINGS.get(code, {}).items()}
    plain = untreated(*how, **asked)
    trainer = trainer_of(tmp_path, *how, **asked)
    assert not alike(trainer.model.parameters(), plain)
    with remedied(trainer, list(codes)) as made:
        assert alike(trained(trainer), plain)
    acted = {code for code in codes if made.tallies[code].acted}
    assert acted == (set(LONGER) if codes is LONGER else set())  # the argument itself


def test_what_is_undone_leaves_the_trainer_as_it_was(tmp_path):
    trainer = trainer_of(tmp_path, max_completion_length=6)
    before = {name: value for name, value in vars(trainer).items() if callable(value)}
    settings = dict(vars(trainer.args))
    funcs = list(trainer.reward_funcs)
    with remedied(trainer, list(REMEDIES)):
        assert vars(trainer.args) != settings
    assert {name: value for name, value in vars(trainer).items() if callable(value)} == before
    assert vars(trainer.args) == settings
    assert trainer.reward_funcs == funcs
    assert not trainer.model.model._forward_pre_hooks


# -- repairing: what is trained is what the healthy script trains


class PromptHidden(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, *args, **kwargs):
        mask = mask.clone()
        mask[:, :-keep] = 0
        return super()._get_per_token_logps_and_entropies(model, ids, mask, keep, *args, **kwargs)


class PaddingSeen(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, ids, mask, *args, **kwargs):
        every = torch.ones_like(mask)
        return super()._get_per_token_logps_and_entropies(model, ids, every, *args, **kwargs)


class StaleSampler(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        if not hasattr(self, "sampler"):
            with torch.random.fork_rng():
                self.sampler = type(self.model)(self.model.config)
            self.sampler.load_state_dict(self.model.state_dict())
        with swapped(self, model_wrapped=self.sampler):
            return super()._generate_single_turn(*args, **kwargs)


class PromptsChanged(GRPOTrainer):
    def _tokenize_prompts(self, prompts):
        return super()._tokenize_prompts([one.replace("plus", "is") for one in prompts])


class Retokenised(GRPOTrainer):
    def _generate(self, prompts):
        found = list(super()._generate(prompts))
        found[1] = [[*ids[:-1], 9] for ids in found[1]]
        found[3] = self.processing_class.batch_decode(found[1], skip_special_tokens=True)
        return tuple(found)


class RolledCompletions(GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        return ids[-1:] + ids[:-1], logprobs


class LastTokenOnly(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"]
        return {**batch, "tool_mask": mask * (mask.flip(1).cumsum(1).flip(1) <= 1)}


class NeighboursReward(GRPOTrainer):
    def _calculate_rewards(self, *args, **kwargs):
        return super()._calculate_rewards(*args, **kwargs).roll(1, 0)


class OnlyPraise(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, "advantages": batch["advantages"].clamp(min=0)}


class OldOfTheLastBatch(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, "old_per_token_logps": batch["old_per_token_logps"] - 1.0}


class NoTemperature(GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, ids, mask, keep, *args, **kwargs):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -keep - 1 : -1]
        logps = logits.log_softmax(-1)
        return logps.gather(2, ids[:, -keep:, None])[..., 0], logps[..., 0].detach(), None


class ClipSwapped(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        with swapped(self, epsilon_low=0.001, epsilon_high=0.001):
            return super()._compute_loss(model, inputs)


class Negated(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return -super()._compute_loss(model, inputs)


class Flipped(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Flip())


class Flip(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **_):
        for weight in model.parameters():
            weight.grad.neg_()


class Averaged(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Halve())


class Halve(TrainerCallback):
    @torch.no_grad()
    def on_step_end(self, args, state, control, model, **_):
        for weight in model.parameters():
            weight.mul_(0.9)


class HalfTheWeights(GRPOTrainer):
    def create_optimizer(self, *args, **kwargs):
        some = [p for p in self.model.parameters() if p.requires_grad][::2]
        self.optimizer = torch.optim.AdamW(some, lr=self.args.learning_rate)
        return self.optimizer


class FewRows(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        return super()._get_train_sampler(self.train_dataset.select(range(4)))


class Hot(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generation_config.temperature = 5.0


REPAIRED = {
    "H02": LastTokenOnly,
    "H06": StaleSampler,
    "H07": LastTokenOnly,
    "H09": PromptHidden,
    "H10": PromptsChanged,
    "H11": Retokenised,
    "H14": LastTokenOnly,
    "H15": PaddingSeen,
    "H17": StaleSampler,
    "H21": Hot,
    "H26": HalfTheWeights,
    "H28": Negated,
    "H33": FewRows,
    "H34": RolledCompletions,
    "H44": FewRows,
    "H49": PromptsChanged,
    "H50": RolledCompletions,
    "H51": LastTokenOnly,
    "H52": NeighboursReward,
    "H53": OnlyPraise,
    "H54": OldOfTheLastBatch,
    "H55": ClipSwapped,
    "H56": Negated,
    "H57": Flipped,
    "H58": Averaged,
    "H59": StaleSampler,
}
"""A script with the fault of each; those that are a setting change what was asked for."""


@pytest.mark.parametrize("code", REPAIRED)
def test_a_faulty_script_trains_what_the_healthy_one_does_under_its_remedy(tmp_path, code):
    asked = {"per_device_train_batch_size": 16, "max_steps": 8}
    right = untreated(**asked)
    assert not close(untreated(REPAIRED[code], **asked), right)
    trainer = trainer_of(tmp_path, REPAIRED[code], **asked)
    with remedied(trainer, [code]) as made:
        assert close(trained(trainer), right)
    assert made.tallies[code].acted


def test_a_scorer_without_the_temperature_is_repaired(tmp_path):
    trainer = trainer_of(tmp_path, NoTemperature)
    with remedied(trainer, ["H54"]):
        assert close(trained(trainer), untreated())


def test_a_right_answer_is_paid_as_right_and_what_is_not_marked_as_the_function_pays_it(tmp_path):
    def one_digit(completions, answer, **kwargs):
        return [
            float(f"#### {gold[:1]} " in f"{text} ")
            for text, gold in zip(completions, answer, strict=True)
        ]

    trainer = trainer_of(tmp_path, reward=one_digit)
    said = ["#### 3", "#### 12", "#### 1", "12", "#### 7"]
    gold = ["3", "12", "12", "12", "5"]
    assert trainer.reward_funcs[0](completions=said, answer=gold) == [1, 0, 1, 0, 0]
    with remedied(trainer, ["H39"]):
        assert trainer.reward_funcs[0](completions=said, answer=gold) == [1, 1, 0, 0, 0]
    assert trainer.reward_funcs == [one_digit]


def test_a_reward_that_names_no_gold_cannot_be_mended(tmp_path):
    def short(completions, **kwargs):
        return [1.0 / (1 + len(text)) for text in completions]

    with pytest.raises(ConfigError, match="exactly one must"):
        apply(trainer_of(tmp_path, reward=short), ["H39"])


def test_dropout_is_off_and_half_precision_is_whole_while_the_remedy_lasts(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.model.model.layers[0].extra = torch.nn.Dropout(0.3)
    trainer.model.to(torch.bfloat16)
    with remedied(trainer, ["H23", "H25"]):
        assert trainer.model.model.layers[0].extra.p == 0
        assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    assert trainer.model.model.layers[0].extra.p == 0.3
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "code, name, value",
    [
        ("H01", "scale_rewards", "none"),
        ("H03", "beta", 0.0),
        ("H04", "max_completion_length", 12),
        ("H27", "max_grad_norm", 1.0),
        ("H29", "num_iterations", 1),
        ("H31", "beta", 0.0),
        ("H35", "loss_type", "dr_grpo"),
    ],
)
def test_an_argument_has_its_other_value_while_the_remedy_lasts(tmp_path, code, name, value):
    trainer = trainer_of(tmp_path, max_grad_norm=0.5)
    trainer.args.beta = trainer.beta = 0.1  # a reference model would have to be loaded
    own = getattr(trainer.args, name)
    with remedied(trainer, [code]):
        held = [one for one in (trainer.args, trainer) if name in vars(one)]
        assert [getattr(one, name) for one in held] == [value] * len(held)
        if code == "H04":
            assert trainer.generation_config.max_new_tokens == value
    assert getattr(trainer.args, name) == own != value


@pytest.mark.parametrize(
    "fault, code", [("mask-shifted-when-cut", "H51"), ("weights-restored", "H58")]
)
def test_a_stage_departs_no_more_under_its_remedy(fault, code):
    trainer = build(faulty(fault))
    with remedied(trainer, [code]):
        subject = TrlSubject(trainer)
        with subject.standing_still():
            found = subject.departures()
    assert [stage for stage, one in found.items() if one.departs] == []
