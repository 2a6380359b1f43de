"""What the shipped lab policy can do, and that the engine plays it exactly.

Training it must be able to mean something: neither a floor nor a ceiling, plays of one problem that
differ in reward, and a greedy play that shows how much sampling noise costs. The names of the
validation split never occur in training.
"""

import json
import random
from functools import lru_cache

import numpy as np
import pytest
import torch

from flatline.evaluate import evaluate
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.sampling import Sampling, filtered_logprobs, uniforms
from flatline.tasks import make_task
from flatline.training.lab import build
from flatline.training.models import load_policy
from tests.quality.report import report

PROBLEMS, SAMPLES = 256, 8
TOLERANCE = 1e-4
"""Largest difference of a log-prob from that of one plain forward pass."""
TIE = 1e-5
"""Uniforms this close to a border of the CDF may fall either way when sums round differently."""

torch.set_num_threads(1)


@lru_cache
def policy():
    return load_policy("lab", device="cpu")


@lru_cache
def task_of(name):
    return make_task(name)


@lru_cache
def problems_of(name, count=PROBLEMS):
    return task_of(name).load(f"lab,,validation[:{count}]", split="validation")


def engine_of(name, *, temperature=1.0, max_batch=64):
    sampling = Sampling(temperature=temperature)
    return Engine(*policy(), task_of(name), sampling=sampling, limits=Limits(), max_batch=max_batch)


@lru_cache
def sampled(name):
    got = evaluate(problems_of(name), engine_of(name), samples=SAMPLES, seed=0)
    report(f"{name}, {PROBLEMS} problems of {SAMPLES} plays at temperature 1:")
    report(f"  combined  {got.parts['combined']}")
    report(f"  group std {got.group_std}")
    for k in (1, SAMPLES):
        report(f"  pass@{k}    {got.pass_at_k[k]}")
    return got


def test_musique_has_headroom():
    assert 0.50 <= sampled("musique").parts["combined"].value <= 0.70


def test_plays_of_one_musique_problem_differ_in_reward():
    assert sampled("musique").group_std.value >= 0.15


@pytest.mark.parametrize("name", ["gsm8k", "toolmath"])
def test_the_controls_have_headroom(name):
    assert 0.30 <= sampled(name).parts["combined"].value <= 0.75


@pytest.mark.parametrize("name", ["musique", "toolmath"])
def test_log_probs_of_256_rollouts_match_one_plain_forward_pass(name):
    model = policy().model
    jobs = [Job(problem, sample) for problem in problems_of(name, 64) for sample in range(4)]
    rollouts = engine_of(name).play(jobs, seed=1)
    worst = [
        float((plain_logprobs(model, r)[1] - torch.tensor(r.logprobs))[by_model(r)].abs().max())
        for r in rollouts
    ]
    turns = np.mean([len(rollout.turns) for rollout in rollouts])
    tokens = sum(sum(rollout.loss_mask) for rollout in rollouts)
    report(
        f"{name}: {len(rollouts)} rollouts of {turns:.2f} turns, {tokens} sampled tokens: "
        f"largest difference {max(worst):.1e}"
    )
    assert turns > 2
    assert max(worst) <= TOLERANCE


@pytest.mark.parametrize("name", ["musique", "toolmath"])
def test_a_rollout_is_the_same_alone_and_in_any_batch(name):
    model, seed = policy().model, 2
    jobs = [Job(problem, sample) for problem in problems_of(name, 16) for sample in range(4)]
    together = engine_of(name).play(jobs, seed=seed)
    order = random.Random(0).sample(range(len(jobs)), len(jobs))
    shuffled = engine_of(name).play([jobs[i] for i in order], seed=seed)
    variants = {
        "alone": [engine_of(name).play([job], seed=seed)[0] for job in jobs],
        "in batches of 7": engine_of(name, max_batch=7).play(jobs, seed=seed),
        "shuffled": [shuffled[order.index(i)] for i in range(len(jobs))],
    }
    ties = 0
    for variant, others in variants.items():
        for ours, other in zip(together, others, strict=True):
            if ours.completion_ids == other.completion_ids:
                continue
            at = first_difference(ours.completion_ids, other.completion_ids)
            distance = border_distance(model, ours, at, seed=seed)
            assert distance < TIE, f"{ours.problem_id} {variant}: {distance:.1e} from a border"
            ties += 1
    report(f"{name}: {len(variants) * len(jobs)} rollouts played again, {ties} parted at a tie")
    assert ties <= len(jobs) // 10


def plain_logprobs(model, rollout):
    """Log-probs of the whole vocabulary and of the completion, from one plain forward pass."""
    ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
    with torch.no_grad():
        logits_TV = model(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
    logps_TV = filtered_logprobs(logits_TV, Sampling())
    return logps_TV, logps_TV.gather(1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]


def by_model(rollout):
    return torch.tensor(rollout.loss_mask, dtype=torch.bool)


def first_difference(ours, others):
    return next(i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b)


def border_distance(model, rollout, at, *, seed):
    """How far the uniform drawn at this place of the completion lay from a border of the CDF."""
    logps_TV, _ = plain_logprobs(model, rollout)
    drawn = sum(rollout.loss_mask[:at])
    u = uniforms(seed, rollout.problem_id, rollout.sample, drawn + 1)[drawn]
    return float((logps_TV[at].double().exp().cumsum(-1) - u).abs().min())


def test_building_on_a_cpu_gives_a_policy_that_loads(tmp_path):
    recipe = build.Recipe(plays=40, drills=20, drill_steps=2, steps=4, batch=8, width=32)
    build.build(recipe, tmp_path)
    policy = load_policy(str(tmp_path))
    assert policy.model.config.hidden_size == 32
    assert json.loads((tmp_path / "build.json").read_text())["recipe"]["steps"] == 4
