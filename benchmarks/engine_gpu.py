"""The engine's ways to decode against transformers' `generate`, and against the memory's speed.

    python benchmarks/engine.py --gpu [--model FOLDER] [--datasets SPEC] [--bf16] [--peft]

All play the same problems with the same tools, limits and batch, in turns; the first round warms up
and is not counted. `static` is what the engine does on a GPU, `stepwise` what it does on a CPU,
`generate` reads every conversation anew in each turn, as TRL's multi-turn loop does.

The bound is the time in which the memory could deliver what the steps of decoding must read: the
weights once a step, and of each row the keys and values so far. Reading prompts is not in it.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from flatline.rollout import graphs, static
from flatline.rollout.engine import Engine, Job, Limits
from flatline.rollout.graphs import recorder
from flatline.rollout.loop import Plan, Stepwise, note
from flatline.rollout.record import Author, Rollout
from flatline.rollout.sampling import Sampling, sample
from flatline.rollout.table import Play, Table
from flatline.tasks import make_task
from flatline.training.models import LoadedPolicy, load_policy

CHECKED = 8
"""Rollouts that are compared with a plain pass."""


class Played(NamedTuple):
    """One batch."""

    seconds: float
    rollouts: list[Rollout]
    peak: float
    """GiB of the device's memory in use at once; 0 on a CPU."""

    @property
    def tokens(self) -> int:
        """Sampled ones."""
        return sum(sum(rollout.loss_mask) for rollout in self.rollouts)


class Generate(Stepwise):
    """Every turn is one call of `generate` on all that each conversation holds."""

    def decode(self, table: Table, turn: Plan) -> set[Play]:
        rows = [torch.tensor(play.prompt_ids + play.completion_ids) for play in table.plays]
        ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
        mask_BT = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in rows], batch_first=True, padding_side="left"
        )
        made_BT = table.model.generate(
            input_ids=ids_BT.to(table.model.device),
            attention_mask=mask_BT.to(table.model.device),
            max_new_tokens=max(turn.rooms.values()),
            do_sample=turn.sampling.temperature > 0,
            temperature=turn.sampling.temperature or None,
            top_k=0,
            top_p=1.0,
            eos_token_id=sorted(turn.ends),
            pad_token_id=0,
        )
        written = made_BT[:, ids_BT.shape[1] :].tolist()
        pairs = zip(table.plays, written, strict=True)
        return {play for play, ids in pairs if _append(play, ids, turn)}


def _append(play: Play, ids: Sequence[int], turn: Plan) -> bool:
    """Take the turn's tokens up to its end; whether it has one."""
    for id in ids[: turn.rooms[play]]:
        play.completion_ids.append(id)
        note(play, 0.0)
        if id in turn.ends:
            return True
    return False


class Meter:
    """Seconds by what is done, with the device idle at each border."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def listening(self) -> Iterator[None]:
        parts = {
            "reading": (Table, "feed"),
            "steps": (static.Static, "_run"),
            "handing out": (static, "_hand_out"),
            "recording": (graphs.Graphs, "_try"),
            "tools": (Engine, "_after_turn"),
            "scoring": (Engine, "_rollout"),
        }
        before = {name: getattr(*part) for name, part in parts.items()}
        for name, part in parts.items():
            setattr(*part, self._timed(name, before[name]))
        try:
            yield
        finally:
            for name, part in parts.items():
                setattr(*part, before[name])

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += clock() - began

        return timed


def clock() -> float:
    """Now, with the device idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def compare(wanted: Any) -> None:
    """Play, print the table, the bound, the check and the profile."""
    logging.disable_progress_bar()
    task = make_task(wanted.task)
    policy = load_policy(wanted.model)
    if wanted.peft:
        policy = with_adapters(policy)
    limits = Limits(max_turns=wanted.max_turns, max_new_tokens=wanted.max_new_tokens)
    engines = {
        name: Engine(*policy, task, sampling=Sampling(), limits=limits, static=name == "static")
        for name in ("static", "stepwise", "generate")
        if not (wanted.no_stepwise and name == "stepwise")
    }
    engines["generate"]._loop = Generate()
    problems = task.load(wanted.datasets, split="validation")
    count = wanted.problems
    if len(problems) < count:
        raise SystemExit(f"{wanted.datasets} has {len(problems)} problems; --problems is {count}.")
    played: dict[str, list[Played]] = {name: [] for name in engines}
    precision = precision_of(policy.model, bf16=wanted.bf16)
    with precision:
        for number in range(wanted.rounds + 1):
            first = number * count % max(1, len(problems) - count + 1)
            drawn = problems[first : first + count]
            jobs = [Job(problem, k) for problem in drawn for k in range(wanted.samples)]
            for name, engine in engines.items():
                played[name].append(timed_play(engine, jobs, seed=number))
        show_speed({name: made[1:] for name, made in played.items()})
        show_bound(engines["static"], played["static"][1:], wanted)
        show_agreement(engines["static"].model, played)
        show_profile(engines["static"], jobs, seed=wanted.rounds)


def with_adapters(policy: LoadedPolicy) -> LoadedPolicy:
    """LoRA that does something: B is not zero."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        policy.model, LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data *= 0.01  # close to the policy that was loaded
    return LoadedPolicy(model.eval(), policy.tokenizer)


def precision_of(model: Any, *, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast(model.device.type, dtype=torch.bfloat16) if bf16 else nullcontext()


def timed_play(engine: Engine, jobs: list[Job], *, seed: int) -> Played:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = clock()
    rollouts = engine.play(jobs, seed=seed)
    seconds = clock() - began
    return Played(seconds, rollouts, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0)


def show_speed(played: dict[str, list[Played]]) -> None:
    print("| loop | seconds | tokens/s | episodes/s | against generate | peak GiB |")
    print("|---" * 6 + "|")
    rates = {name: [b.tokens / b.seconds for b in made] for name, made in played.items()}
    for name, made in played.items():
        ratios = [a / b for a, b in zip(rates[name], rates["generate"], strict=True)]
        episodes = [len(b.rollouts) / b.seconds for b in made]
        cells = [statistics.median(b.seconds for b in made), statistics.median(rates[name])]
        print(
            f"| {name} | {cells[0]:.2f} | {cells[1]:.0f} | {statistics.median(episodes):.2f} "
            f"| {statistics.median(ratios):.2f}x ({min(ratios):.2f}x to {max(ratios):.2f}x) "
            f"| {max(b.peak for b in made):.1f} |"
        )


def show_bound(engine: Engine, made: list[Played], wanted: Any) -> None:
    """Bytes that the steps must read, over the bandwidth."""
    size = 2 if wanted.bf16 else next(engine.model.parameters()).element_size()
    weights, cached = bytes_of(engine.model, size)
    shares = []
    for batch in made:
        steps = sum(longest_turns(batch.rollouts))
        read = steps * weights + cached * sum(map(tokens_seen, batch.rollouts))
        shares.append(read / wanted.bandwidth / batch.seconds)
        each = batch.seconds / max(1, steps)
    print(
        f"\nA step reads {weights / 1e9:.3f} GB of weights and {cached / 1e3:.1f} kB for each "
        f"token seen; at {wanted.bandwidth / 1e12:g} TB/s that bounds the batch. Reached: "
        f"{statistics.median(shares):.1%} of the bound ({len(made)} rounds; "
        f"{1e3 * each:.2f} ms for each step of the last, everything in it)."
    )


def bytes_of(model: Any, size: int) -> tuple[int, int]:
    """Of the weights that every step reads, and of the cache for one token."""
    layers = [m for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D")]
    weights = {id(m.weight): m.weight.numel() for m in layers}
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return sum(weights.values()) * size, 2 * config.num_hidden_layers * heads * width * size


def longest_turns(rollouts: Sequence[Rollout]) -> list[int]:
    """Steps of every turn: all rows wait for the longest."""
    lengths = [
        [sum(1 for _ in run) for author, run in groupby(one.authors) if author is Author.MODEL]
        for one in rollouts
    ]
    most = max(map(len, lengths))
    return [max(turns[i] for turns in lengths if len(turns) > i) for i in range(most)]


def tokens_seen(rollout: Rollout) -> int:
    """Cached tokens that the steps of this rollout look at, all together."""
    start = len(rollout.prompt_ids)
    return sum(start + at for at, author in enumerate(rollout.authors) if author is Author.MODEL)


def show_agreement(model: Any, played: dict[str, list[Played]]) -> None:
    """Log-probs against one plain pass, and tokens of the two ways to decode."""
    for name in sorted({"static", "stepwise"} & played.keys()):
        gaps_T = torch.cat([_gaps(model, one) for one in played[name][-1].rollouts[:CHECKED]])
        print(f"{name}: |log-prob - plain pass| mean {gaps_T.mean():.2g}, max {gaps_T.max():.2g}")
    if "stepwise" not in played:
        return
    pairs = list(zip(played["static"][-1].rollouts, played["stepwise"][-1].rollouts, strict=True))
    same = sum(a.completion_ids == b.completion_ids for a, b in pairs)
    print(f"static and stepwise: {same} of {len(pairs)} completions are the same tokens")


@torch.no_grad()
def _gaps(model: Any, rollout: Rollout) -> Tensor:
    ids_1T = torch.tensor([rollout.prompt_ids + rollout.completion_ids], device=model.device)
    logits_TV = model(input_ids=ids_1T).logits[0, len(rollout.prompt_ids) - 1 : -1].float()
    ids_T = ids_1T[0, len(rollout.prompt_ids) :]
    plain_T = logits_TV.log_softmax(-1).gather(1, ids_T[:, None])[:, 0].cpu()
    by_model_T = torch.tensor(rollout.loss_mask).bool()
    gaps_T: Tensor = (plain_T - torch.tensor(rollout.logprobs)).abs()[by_model_T]
    return gaps_T


def show_profile(engine: Engine, jobs: list[Job], *, seed: int) -> None:
    """Where the time of one more batch goes."""
    meter = Meter()
    with meter.listening():
        played = timed_play(engine, jobs, seed=seed)
    steps = sum(longest_turns(played.rollouts))
    drawing = steps * drawing_seconds(engine, len(jobs))
    found = dict(meter.seconds)
    found.setdefault("recording", 0.0)
    found["sampling"] = min(drawing, found["steps"])
    found["decoding"] = found.pop("steps") - found["recording"] - found["sampling"]
    found["host, all else"] = played.seconds - sum(found.values())
    print(f"\n| part of {played.seconds:.2f} s, {steps} steps | seconds | share |\n|---|---|---|")
    for name, seconds in sorted(found.items(), key=lambda one: -one[1]):
        print(f"| {name} | {seconds:.3f} | {seconds / played.seconds:.0%} |")


@torch.inference_mode()
def drawing_seconds(engine: Engine, rows: int, calls: int = 20) -> float:
    """One draw for all rows, recorded where it can be: inside a step it cannot be timed."""
    device = engine.model.device
    vocabulary = engine.model.config.get_text_config().vocab_size
    logits_BV = torch.randn(rows, vocabulary, device=device)
    uniforms_B = torch.rand(rows, dtype=torch.float64, device=device)

    def draw() -> None:
        sample(logits_BV, uniforms_B, engine.sampling)

    record = recorder(device)
    draw = record(draw) if record else draw
    began = clock()
    for _ in range(calls):
        draw()
    return (clock() - began) / calls
