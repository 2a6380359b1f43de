"""Every hypothesis has a remedy or says why not; a remedy repairs its fault and nothing else."""

import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from flatline.errors import ConfigError
from flatline.hypotheses import HYPOTHESES
from flatline.live.trl.subject import TrlSubject
from flatline.remedies import REMEDIES, WITHOUT, apply, remedied, remedy_of

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "scripts"))

from foreign_faults import faulty
from foreign_script import build
from prepare import WORDS, prompt, tokenizer

from tests.tiny import tiny_model

torch.set_num_threads(1)

SETTINGS = {
    "H01": {"scale_rewards": "none"},
    "H22": {"vllm_importance_sampling_mode": "token_truncate"},
    "H27": {"max_grad_norm": 1.0},
    "H29": {"num_iterations": 1},
    "H35": {"loss_type": "dr_grpo"},
}
"""What a script that has a remedy's setting already asks for."""
DIFFER = {"H04": "longer completions", "H13": "longer completions"}
"""Remedies that give every run something else; there is no script that has it already."""


def correct(completions, answer, **kwargs):
    pairs = zip(completions, answer, strict=True)
    return [float(gold in text.split()) for text, gold in pairs]


def rows():
    return [
        {"prompt": prompt(a, b), "answer": str(a + b)} for a in range(6) for b in range(0, 10, 3)
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


def alike(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_every_hypothesis_has_a_remedy_or_says_why_not():
    codes = {one.id for one in HYPOTHESES}
    assert codes == REMEDIES.keys() | WITHOUT.keys()
    assert not REMEDIES.keys() & WITHOUT.keys()
    assert all(text.endswith(".") and len(text) > 40 for text in WITHOUT.values())


def test_without_a_remedy_it_is_said_what_to_change():
    with pytest.raises(ConfigError, match="reward_weights"):
        remedy_of("H37")


@pytest.mark.parametrize("code", [code for code in REMEDIES if code not in DIFFER])
def test_a_healthy_trainer_is_trained_bit_for_bit_as_without_it(tmp_path, code):
    asked = SETTINGS.get(code, {})
    plain = trained(trainer_of(tmp_path, **asked))
    trainer = trainer_of(tmp_path, **asked)
    assert not alike(trainer.model.parameters(), plain)
    with remedied(trainer, [code]) as made:
        assert alike(trained(trainer), plain)
    assert made.tallies[code].acted == 0


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


def test_each_says_once_what_it_does(tmp_path, capfd):
    apply(trainer_of(tmp_path), ["H09"]).undo()
    assert capfd.readouterr().err.count("remedy for H09: this run gives the model ones") == 1


# -- repairing


@pytest.mark.parametrize(
    "fault, code",
    [
        ("prompts-interleaved", "H33"),
        ("debug-subset", "H33"),
        ("prompts-lowercased", "H49"),
        ("completions-rolled", "H50"),
        ("padded-on-the-right", "H50"),
        ("mask-shifted-when-cut", "H51"),
        ("last-tokens-only", "H51"),
        ("neighbours-reward", "H52"),
        ("second-weight-ignored", "H52"),
        ("batch-baseline", "H53"),
        ("only-praise", "H53"),
        ("temperature-not-in-scorer", "H54"),
        ("old-of-the-last-batch", "H54"),
        ("clip-bounds-swapped", "H55"),
        ("kl-not-in-the-loss", "H55"),
        ("loss-negated", "H56"),
        ("divided-by-the-limit", "H56"),
        ("sign-flipped", "H57"),
        ("last-pass-only", "H57"),
        ("weights-restored", "H58"),
        ("half-the-weights", "H58"),
        ("rate-zero-from-step-5", "H58"),
        ("sampler-at-half-scale", "H59"),
    ],
)
def test_a_fault_is_gone_under_its_remedy(fault, code):
    trainer = build(faulty(fault))
    with remedied(trainer, [code]):
        subject = TrlSubject(trainer)
        with subject.standing_still():
            found = subject.departures()
    assert [stage for stage, one in found.items() if one.departs] == []
