"""The engine's own kernels against vLLM on one GPU: the same loop, weights, problems and tools.

    python benchmarks/engine_vllm.py [--model FOLDER] [--datasets SPEC] [--rounds 3]

Both sit in one process, as colocated vLLM does. `vllm, turn by turn` sends all conversations and
waits for the last, as TRL's loop does; in `vllm, as they end` a play whose turn is over goes on at
once while the others write. Prefixes are cached, so vLLM reads a conversation once, as the engine
does. The loops take turns and the one that starts changes; the first round warms up and is not
counted. A second table is greedy: there all three play the very same episodes, up to rounding.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# both are read when vLLM is imported
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

import torch
from engine_gpu import CHECKED, Played, _gaps, precision_of, timed_play
from transformers.utils import logging

from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.loop import Plan, note
from flatline.rollout.sampling import Sampling
from flatline.rollout.table import Play, Table
from flatline.stats import cluster_mean
from flatline.tasks import make_task
from flatline.tasks.base import Problem
from flatline.training.models import LoadedPolicy, load_policy

OURS = "static"


class Vllm:
    """Every turn is a request. `all_at_once`: all turns of a round are waited for."""

    def __init__(self, engine: Any, *, all_at_once: bool) -> None:
        self._engine, self._all_at_once = engine, all_at_once
        self._going: dict[str, Play] = {}
        self._number = 0

    @contextmanager
    def playing(self, model: Any) -> Iterator[None]:
        self._engine.reset_prefix_cache()  # weights that were trained invalidate it, too
        try:
            yield
        finally:
            self._engine.abort_request(list(self._going))
            self._going.clear()

    def seat(self, model: Any, plays: list[Play]) -> Table:
        return Table(model, plays)

    @torch.autocast("cuda", enabled=False)  # its own weights have their precision already
    def decode(self, table: Table, turn: Plan) -> set[Play]:
        going = set(self._going.values())
        for play in table.plays:
            if play not in going:
                self._ask(play, turn)
        ended: set[Play] = set()
        wanted = len(self._going) if self._all_at_once else 1
        while wanted > 0:
            for answer in self._engine.step():
                if answer.finished:
                    wanted -= 1
                    play = self._going.pop(answer.request_id)
                    if _take(play, answer.outputs[0], turn):
                        ended.add(play)
        return ended

    def _ask(self, play: Play, turn: Plan) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._number += 1
        self._going[str(self._number)] = play
        self._engine.add_request(
            str(self._number),
            {"prompt_token_ids": play.prompt_ids + play.completion_ids},
            SamplingParams(
                temperature=turn.sampling.temperature,
                max_tokens=turn.rooms[play],
                stop_token_ids=sorted(turn.ends),
                ignore_eos=True,  # the ends of the chat template, and no others
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            ),
        )


def _take(play: Play, written: Any, turn: Plan) -> bool:
    """Its tokens and log-probs; whether it ended the turn by itself."""
    for id, told in zip(written.token_ids, written.logprobs, strict=True):
        play.completion_ids.append(id)
        note(play, told[id].logprob)
    return play.completion_ids[-1] in turn.ends


def vllm_engine(wanted: argparse.Namespace) -> Any:
    from vllm import LLM

    return LLM(
        model=wanted.model,
        dtype=wanted.dtype,
        max_model_len=wanted.max_context,
        gpu_memory_utilization=wanted.memory,
        max_num_seqs=wanted.problems * wanted.samples,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        seed=0,
    ).llm_engine


def compare(wanted: argparse.Namespace) -> None:
    logging.disable_progress_bar()
    task = make_task(wanted.task)
    problems = task.load(wanted.datasets, split="validation")
    policy = load_policy(wanted.model, chat_template=wanted.chat_template)
    began = time.perf_counter()
    engine = vllm_engine(wanted)
    print(f"vLLM started in {time.perf_counter() - began:.0f} s", flush=True)
    loops = {
        "vllm, turn by turn": Vllm(engine, all_at_once=True),
        "vllm, as they end": Vllm(engine, all_at_once=False),
    }
    count = wanted.problems * wanted.samples
    with precision_of(policy.model, bf16=wanted.dtype == "bfloat16"):
        for title, sampling, each in (
            (f"{wanted.problems} problems x {wanted.samples} plays", Sampling(), wanted.samples),
            (f"{count} problems, greedy", Sampling(temperature=0.0), 1),
        ):
            engines = _engines(policy, task, sampling, loops, wanted)
            played = _rounds(engines, problems, count // each, each, wanted.rounds)
            print(f"\n## {title}, {wanted.rounds} rounds, {wanted.dtype}\n")
            _show(played, engines[OURS].model, checked=sampling.temperature > 0)


def _engines(
    policy: LoadedPolicy, task: Any, sampling: Sampling, loops: Any, wanted: argparse.Namespace
) -> dict[str, Engine]:
    limits = Limits(
        max_turns=wanted.max_turns,
        max_new_tokens=wanted.max_new_tokens,
        max_prompt=wanted.max_context - wanted.max_new_tokens,
        max_context=wanted.max_context,
    )
    made = {
        name: Engine(*policy, task, sampling=sampling, limits=limits, static=True)
        for name in (OURS, *loops)
    }
    for name, loop in loops.items():
        made[name]._loop = loop
        made[name]._uniforms = lambda *_: torch.empty(0)  # vLLM draws its own
    return made


def _rounds(
    engines: dict[str, Engine], problems: Sequence[Problem], count: int, each: int, rounds: int
) -> dict[str, list[Played]]:
    played: dict[str, list[Played]] = {name: [] for name in engines}
    names = list(engines)
    for number in range(rounds + 1):
        first = number * count % max(1, len(problems) - count + 1)
        jobs = [Job(one, k) for one in problems[first : first + count] for k in range(each)]
        turned = number % len(names)
        for name in names[turned:] + names[:turned]:
            batch = timed_play(engines[name], jobs, seed=number)
            if number:
                played[name].append(batch)
                print(f"round {number}: {name} {batch.seconds:.2f} s", flush=True)
    return played


def _show(played: dict[str, list[Played]], model: Any, *, checked: bool) -> None:
    print("| loop | seconds | tokens/s | episodes/s | against ours | reward | log-prob gap |")
    print("|---" * 7 + "|")
    rates = {name: [b.tokens / b.seconds for b in made] for name, made in played.items()}
    for name, made in played.items():
        ratios = [a / b for a, b in zip(rates[name], rates[OURS], strict=True)]
        episodes = statistics.median(len(b.rollouts) / b.seconds for b in made)
        told = [one for batch in made for one in batch.rollouts]
        reward = cluster_mean([r.score.reward for r in told], [r.problem_id for r in told])
        print(
            f"| {name} | {statistics.median(b.seconds for b in made):.2f} "
            f"| {statistics.median(rates[name]):.0f} | {episodes:.2f} "
            f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f}x to {max(ratios):.2f}x) "
            f"| {reward} | {_gap(model, made[-1]) if checked else ''} |",
            flush=True,
        )


@torch.inference_mode()
def _gap(model: Any, batch: Played) -> str:
    gaps_T = torch.cat([_gaps(model, one) for one in batch.rollouts[:CHECKED]])
    return f"mean {gaps_T.mean():.2g}, max {gaps_T.max():.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder with safetensors")
    parser.add_argument("--task", default="musique")
    parser.add_argument("--chat-template", help="as in `flatline train`")
    parser.add_argument("--datasets", default="lab,,validation[:128]")
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-turns", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--max-context", type=int, default=3072)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--memory", type=float, default=0.3, help="share of the GPU for vLLM")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
