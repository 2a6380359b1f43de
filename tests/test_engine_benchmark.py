"""The benchmark of the engine on a GPU: its arithmetic, and that it runs where there is none."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flatline.rollout.record import Author
from tests.plays import rollout_of
from tests.test_engine import engine_of, jobs_of
from tests.tiny import tiny_model

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import engine
import engine_gpu
import engine_vllm

M, T = Author.MODEL, Author.TOOL


def written_by(*authors):
    return replace(rollout_of("p"), authors=list(authors))


def test_the_steps_of_a_turn_are_those_of_its_longest_row():
    played = [written_by(M, M, T, M), written_by(M, T, T, M, M, M), written_by(M)]
    assert engine_gpu.longest_turns(played) == [2, 3]


def test_every_token_looks_at_all_that_came_before():
    one = written_by(M, T, M)
    assert engine_gpu.tokens_seen(one) == (2 + 0) + (2 + 2)


def test_a_step_reads_weights_once_and_the_cache_of_two_key_heads():
    model = tiny_model()
    weights, cached = engine_gpu.bytes_of(model, 2)
    read = sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2)
    assert weights == 2 * read  # embeddings are tied: the head reads them
    assert cached == 2 * (2 * 2 * 2 * 8)


def test_generate_plays_the_same_greedy_tokens():
    from flatline.rollout.sampling import Sampling

    ours, theirs = (engine_of(sampling=Sampling(temperature=0)) for _ in range(2))
    theirs._loop = engine_gpu.Generate()
    a, b = (one.play(jobs_of(3, 1), seed=0) for one in (ours, theirs))
    assert [one.completion_ids for one in a] == [one.completion_ids for one in b]
    assert Counter(one.finish for one in a) == Counter(one.finish for one in b)


class StandIn:
    """Answers as vLLM's engine does, a token a step, greedily."""

    def __init__(self, model):
        self.model, self.asked, self.steps = model, {}, 0

    def add_request(self, id, prompt, params):
        self.asked[id] = (prompt["prompt_token_ids"], [], [], params)

    def abort_request(self, ids):
        assert not ids

    def reset_prefix_cache(self):
        assert not self.asked

    @torch.no_grad()
    def step(self):
        self.steps += 1
        return [answer for id in list(self.asked) if (answer := self._token(id))]

    def _token(self, id):
        prompt, ids, told, params = self.asked[id]
        logps_V = self.model(torch.tensor([prompt + ids])).logits[0, -1].log_softmax(-1)
        best = int(logps_V.argmax())
        ids.append(best)
        told.append({best: SimpleNamespace(logprob=float(logps_V[best]))})
        if best not in params.stop_token_ids and len(ids) < params.max_tokens:
            return None
        del self.asked[id]
        written = SimpleNamespace(token_ids=ids, logprobs=told)
        return SimpleNamespace(finished=True, request_id=id, outputs=[written])


@pytest.mark.parametrize("all_at_once", [True, False])
def test_vllm_in_the_same_loop_plays_the_same_greedy_tokens(monkeypatch, all_at_once):
    from flatline.rollout.sampling import Sampling

    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    ours, theirs = (engine_of(sampling=Sampling(temperature=0)) for _ in range(2))
    theirs._loop = engine_vllm.Vllm(StandIn(theirs.model), all_at_once=all_at_once)
    a, b = (one.play(jobs_of(3, 1), seed=0) for one in (ours, theirs))
    assert [one.completion_ids for one in a] == [one.completion_ids for one in b]
    for one, other in zip(a, b, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_it_runs_on_a_cpu_with_the_lab(capsys):
    given = "--gpu --rounds 1 --problems 1 --samples 2 --max-turns 2 --max-new-tokens 8 --peft"
    engine_gpu.compare(engine.arguments().parse_args(given.split()))
    printed = capsys.readouterr().out
    assert "| generate |" in printed and "of the bound" in printed
    assert "2 of 2 completions are the same tokens" in printed
    assert all(f"| {part} |" in printed for part in ("decoding", "sampling", "reading", "tools"))


def test_too_few_problems_are_refused():
    given = "--gpu --problems 9 --datasets lab,,validation[:4]"
    with pytest.raises(SystemExit, match="has 4 problems"):
        engine_gpu.compare(engine.arguments().parse_args(given.split()))


def test_what_was_timed_is_put_back():
    before = engine_gpu.Table.feed
    meter = engine_gpu.Meter()
    with meter.listening(), torch.no_grad():
        engine_of(static=True).play(jobs_of(1, 1), seed=0)
    assert engine_gpu.Table.feed is before
    assert {"reading", "steps", "tools"} <= set(meter.seconds)
