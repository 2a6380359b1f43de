"""Sampling: the log-prob is that of the distribution really drawn from."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatline.errors import ConfigError
from flatline.rollout.sampling import Sampling, filtered_logprobs, sample, uniforms

torch.set_num_threads(1)


def logits_of(seed: int, rows: int = 4, vocab: int = 50, spread: float = 3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def brute_force(logits: list[float], sampling: Sampling) -> np.ndarray:
    """The filtered distribution, one token at a time, in double precision."""
    scaled = np.array(logits, dtype=np.float64) / sampling.temperature
    kept = set(range(len(scaled)))
    if sampling.top_k:
        ranked = sorted(scaled, reverse=True)
        kept = {i for i in kept if scaled[i] >= ranked[min(sampling.top_k, len(ranked)) - 1]}
    mass = {i: np.exp(scaled[i] - scaled.max()) for i in kept}
    total = sum(mass.values())
    if sampling.top_p < 1:
        nucleus, reached = set(), 0.0
        for i in sorted(kept, key=lambda i: (-scaled[i], i)):
            if reached >= sampling.top_p:
                break
            nucleus.add(i)
            reached += mass[i] / total
        kept = nucleus
    best = max(mass[i] for i in kept)
    kept = {i for i in kept if mass[i] >= sampling.min_p * best}
    probs = np.array([mass[i] if i in kept else 0.0 for i in range(len(scaled))])
    return probs / probs.sum()


filters = st.builds(
    Sampling,
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
)


@settings(max_examples=60, deadline=None)
@given(sampling=filters, seed=st.integers(0, 1000))
def test_filters_match_brute_force(sampling, seed):
    logits_BV = logits_of(seed)
    ours_BV = filtered_logprobs(logits_BV, sampling).exp().numpy()
    for logits, ours in zip(logits_BV.tolist(), ours_BV, strict=True):
        # A token exactly on the edge of a filter may fall either way in fp32.
        assert np.abs(ours - brute_force(logits, sampling)).max() < 1e-5


@settings(max_examples=60, deadline=None)
@given(sampling=filters, seed=st.integers(0, 1000), u=st.floats(0, 1, exclude_max=True))
def test_a_filtered_token_is_never_drawn(sampling, seed, u):
    logits_BV = logits_of(seed)
    ids_B, logps_B = sample(logits_BV, torch.full((4,), u, dtype=torch.float64), sampling)
    assert torch.isfinite(logps_B).all()
    expected_B = filtered_logprobs(logits_BV, sampling).gather(1, ids_B[:, None])[:, 0]
    assert torch.equal(logps_B, expected_B)


@pytest.mark.parametrize("u", [1 - 2**-53, 1.0, float(np.float32(1 - 2**-24)), 0.0])
def test_the_ends_of_the_unit_interval_hit_possible_tokens(u):
    logits_BV = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf, -200.0, -torch.inf]])
    ids_B, logps_B = sample(logits_BV, torch.tensor([u], dtype=torch.float64), Sampling())
    assert ids_B.item() == (1 if u == 0 else 2)
    assert torch.isfinite(logps_B).all()


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7, top_k=8, top_p=0.9, min_p=0.02)]
)
def test_frequencies_match_probabilities(sampling):
    draws = 40_000
    logits_V = logits_of(3, rows=1, vocab=20, spread=1.5)
    u_B = torch.from_numpy(uniforms(0, "p", 0, draws))
    ids_B, logps_B = sample(logits_V.expand(draws, -1), u_B, sampling)
    expected = brute_force(logits_V[0].tolist(), sampling)
    seen = np.bincount(ids_B.numpy(), minlength=20) / draws
    sigma = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(seen - expected) <= 4.5 * sigma + 1e-9).all()
    assert np.abs(logps_B.exp().numpy() - expected[ids_B.numpy()]).max() < 1e-5


def test_greedy_takes_the_best_and_reports_the_plain_softmax():
    logits_BV = logits_of(1)
    ids_B, logps_B = sample(logits_BV, torch.zeros(4), Sampling(temperature=0, top_k=1))
    assert torch.equal(ids_B, logits_BV.argmax(-1))
    assert torch.allclose(logps_B, logits_BV.log_softmax(-1).amax(-1))


def test_half_precision_logits_are_scored_in_fp32():
    _, logps_B = sample(logits_of(1).bfloat16(), torch.zeros(4), Sampling())
    assert logps_B.dtype == torch.float32


def test_streams_are_the_rollout_s_own():
    stream = uniforms(0, "p", 0, 100)
    assert (uniforms(0, "p", 0, 10) == stream[:10]).all()
    assert ((stream >= 0) & (stream < 1)).all()
    for other in [(1, "p", 0), (0, "q", 0), (0, "p", 1), (0, "p0", 0), (-1, "p", 0)]:
        assert not (uniforms(*other, 100) == stream).any()


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2}]
    + [{name: float("nan")} for name in ("temperature", "top_p", "min_p")],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match="--"):
        Sampling(**wrong)
