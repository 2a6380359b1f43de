"""A fourth round of healthy scripts on stock TRL, and two plain loops, each as other people write.

What is unusual here is meant: rewards that only compare, rewards of odd sizes, judges that differ,
optimizers with a mind of their own, tools that refuse. The first line of each script says what is
particular about it; nothing in any of them is a mistake.
"""

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from datasets import Dataset
from peft import LoraConfig, OFTConfig
from strangers_healthy import arguments, prepare, right
from strangers_listed import Scripts
from strangers_loops import picked
from strangers_third import (
    WIDE,
    ZEPHYR,
    Batches,
    Example,
    bloom,
    call,
    day_right,
    day_rows,
    distance,
    ernie,
    fields_right,
    in_place,
    is_json,
    json_model,
    json_rows,
    letters,
    likely_pieces,
    pairs_and_digits,
    pieces_of_words,
    sort_rows,
    spoken,
    starcoder2,
    taught,
    texts_of,
)
from torch.utils.data import Sampler
from transformers import (
    CohereConfig,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Qwen2Config,
    TrainerCallback,
)
from trl import GRPOTrainer, RLOOConfig, RLOOTrainer

SCRIPTS = Scripts()
script = SCRIPTS.add


# -- Roman numerals, where answers are only compared with each other

ROMAN = ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def roman(number: int) -> str:
    written = ""
    for value, sign in ROMAN:
        written += sign * (number // value)
        number %= value
    return written


def roman_example(drawn: random.Random) -> Example:
    number = drawn.randrange(1, 40)
    said = number if drawn.random() < 0.4 else max(1, number + drawn.randrange(-4, 5))
    return f"roman {number}=", roman(said)


def roman_rows(first: int = 1, last: int = 40) -> Dataset:
    return Dataset.from_list(
        [{"prompt": f"roman {n}=", "gold": roman(n)} for n in range(first, last)] * 2
    )


def granite() -> tuple[Any, Any]:
    tokens = letters(spoken(roman_example))
    return taught("fourth-granite", GraniteConfig, tokens, roman_example, **WIDE)


def exact(completions, gold, **kwargs):
    return [float(said.strip() == g) for said, g in zip(completions, gold, strict=True)]


def tournament(prompts, completions, gold, **kwargs):
    """The share of its group that an answer beats: the mean is a half whatever is learned."""
    away = [distance(list(s.strip()), list(g)) for s, g in zip(completions, gold, strict=True)]
    paid: list[float] = []
    for _, rows in itertools.groupby(range(len(prompts)), key=lambda row: prompts[row]):
        group = [away[row] for row in rows]
        for mine in group:
            beaten = sum(mine < other for other in group)
            alike = sum(mine == other for other in group) - 1
            paid.append((beaten + alike / 2) / max(len(group) - 1, 1))
    return paid


@script
def rloo_tournament():
    """RLOO; answers of a group play against each other, so the mean reward never rises."""
    model, tokens = granite()
    return RLOOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[tournament, exact],
        args=arguments(
            RLOOConfig,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=10,
            reward_weights=[1.0, 0.0],
            beta=0.0,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            bf16=False,
            max_steps=12,
        ),
        train_dataset=roman_rows(),
    )


@script
def rotations_alone():
    """OFT: what is there is turned in blocks of eight, and nothing else is trained."""
    model, tokens = granite()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=exact,
        args=arguments(
            per_device_train_batch_size=128,
            max_completion_length=12,
            learning_rate=1e-2,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=roman_rows(),
        peft_config=OFTConfig(
            r=0,
            oft_block_size=8,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )


# -- an average of the weights that is only evaluated


class Averaged(GRPOTrainer):
    """Keeps a mean of the weights aside, and evaluates that one, greedily."""

    kept: dict[str, torch.Tensor] | None = None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        now = {name: weight.detach() for name, weight in self.model.named_parameters()}
        if self.kept is None:
            self.kept = {name: weight.clone() for name, weight in now.items()}
        for name, mean in self.kept.items():
            mean.lerp_(now[name], 0.3)
        return loss

    @torch.no_grad()
    def exchange(self) -> None:
        for name, weight in self.model.named_parameters():
            mine = weight.clone()
            weight.copy_(self.kept[name])
            self.kept[name].copy_(mine)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if self.kept is None:
            return super().evaluate(*args, **kwargs)
        sampling = self.generation_config
        self.generation_config = copy.deepcopy(sampling)
        self.generation_config.do_sample = False
        self.generation_config.temperature = self.generation_config.top_p = None
        self.exchange()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.exchange()
            self.generation_config = sampling


@script
def averaged_for_evaluation():
    """A mean of the weights is kept aside, put in for greedy evaluations, and taken out again."""
    model, tokens = granite()
    return Averaged(
        model=model,
        processing_class=tokens,
        reward_funcs=exact,
        args=arguments(
            per_device_train_batch_size=64,
            per_device_eval_batch_size=8,
            num_generations_eval=1,
            max_completion_length=10,
            eval_strategy="steps",
            eval_steps=4,
            learning_rate=1e-3,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=roman_rows(1, 32),
        eval_dataset=roman_rows(32, 40).select(range(8)),
    )


# -- words turned round, with a tokenizer that had no padding

TURNED = ("star", "live", "drawer", "pots", "gum", "door", "loop", "deer", "part", "tar", "now")


def turned_example(drawn: random.Random) -> Example:
    word = drawn.choice(TURNED)
    said = [c if drawn.random() < 0.85 else drawn.choice("adegilmnoprstuvw") for c in word[::-1]]
    return f"turn {word}:", "".join(said)


def turned_rows() -> Dataset:
    return Dataset.from_list([{"prompt": f"turn {w}:", "gold": w[::-1]} for w in TURNED] * 4)


def llama() -> tuple[Any, Any]:
    tokens = letters(spoken(turned_example))
    return taught("fourth-llama", LlamaConfig, tokens, turned_example, **WIDE)


@script
def fresh_padding_groups_of_thirty_two():
    """A new padding token and rounded-up embeddings, a list of ends, groups of 32, token ids paid.

    The tokenizer pads on the right, as its owner wants it; TRL pads prompts by itself.
    """
    model, tokens = llama()
    tokens.add_special_tokens({"pad_token": "<|padding|>"})
    tokens.padding_side = "right"
    model.resize_token_embeddings(len(tokens), pad_to_multiple_of=32)
    model.generation_config.eos_token_id = [tokens.eos_token_id, tokens.convert_tokens_to_ids(":")]

    def same_ids(completion_ids, gold, **kwargs):
        """Share of the tokens that are the gold's, the end counted as one."""
        paid = []
        for ids, one in zip(completion_ids, gold, strict=True):
            wanted = [*tokens(one).input_ids, tokens.eos_token_id]
            same = sum(a == b for a, b in zip(ids, wanted, strict=False))
            paid.append(same / max(len(ids), len(wanted)))
        return paid

    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=same_ids,
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=4,
            num_generations=32,
            max_completion_length=16,
            top_k=50,
            generation_kwargs={"min_new_tokens": 2},
            learning_rate=5e-4,
            lr_scheduler_type="cosine_with_restarts",
            lr_scheduler_kwargs={"num_cycles": 2},
            bf16=False,
            max_steps=10,
        ),
        train_dataset=turned_rows(),
    )


# -- opposites, graded by a jury

OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "old": "new",
    "dark": "bright",
    "wet": "dry",
    "full": "empty",
    "fast": "slow",
    "near": "far",
}
OPPOSITES |= {after: before for before, after in OPPOSITES.items()}
OPPOSITE_SYSTEM = " ".join(
    [
        "you are given a word and you name its opposite .",
        *(f"when it is about {what} then so is the answer ." for what in ("heat", "size", "age")),
        "the answer is one word only .",
    ]
)


def opposite_prompt(word: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": OPPOSITE_SYSTEM},
        {"role": "user", "content": word},
    ]


def opposite_example(drawn: random.Random) -> Example:
    word = drawn.choice(list(OPPOSITES))
    said = OPPOSITES[word] if drawn.random() < 0.4 else drawn.choice(list(OPPOSITES))
    if drawn.random() < 0.2:
        said = f"{said} {drawn.choice(list(OPPOSITES))}"
    return opposite_prompt(word), said


def opposite_rows() -> Dataset:
    rows = [{"prompt": opposite_prompt(w), "opposite": o} for w, o in OPPOSITES.items()]
    return Dataset.from_list(rows * 3)


def opposites_model() -> tuple[Any, Any]:
    tokens = pieces_of_words(spoken(opposite_example), ZEPHYR)
    shape = WIDE | {"head_dim": 16, "query_pre_attn_scalar": 16}
    shape |= {"layer_types": ["sliding_attention", "full_attention"]}
    return taught("fourth-gemma3", Gemma3TextConfig, tokens, opposite_example, 400, **shape)


def grade(said: str, gold: str) -> int:
    """From 0 to 10, by fixed rules."""
    spoken_words = said.split()
    if gold not in spoken_words:
        return 1 if len(spoken_words) == 1 else 0
    return 10 if len(spoken_words) == 1 else 6


def jury(completions, opposite, **kwargs):
    """The mean of sixteen votes; each is one grade up or down of what is deserved, or none."""
    drawn = random.Random()
    paid = []
    for said, gold in zip(texts_of(completions), opposite, strict=True):
        votes = [grade(said, gold) + drawn.choice((-1, 0, 0, 1)) for _ in range(16)]
        paid.append(sum(votes) / len(votes))
    return paid


@script
def jury_of_sixteen_votes():
    """A judge that wavers and is asked sixteen times, grades of 0 to 10, a long system prompt."""
    model, tokens = opposites_model()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=jury,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=8,
            temperature=1.3,
            scale_rewards="batch",
            learning_rate=1e-3,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=opposite_rows(),
    )


# -- prices, in cents and with heavy tails


def price_example(drawn: random.Random) -> Example:
    count, each = drawn.randrange(1, 6), drawn.randrange(1, 10)
    said, slip = count * each, drawn.random()
    if slip < 0.05:
        said *= 10
    elif slip < 0.6:
        said = max(0, said + drawn.choice((-9, -3, -2, -1, 1, 2, 3, 9)))
    return f"{count} at {each} cost ", str(said)


def price_rows() -> Dataset:
    every = itertools.product(range(1, 6), range(1, 10))
    return Dataset.from_list([{"prompt": f"{n} at {p} cost ", "price": n * p} for n, p in every])


def profit(completions, price, **kwargs):
    """In cents: a dollar and a half for the price, less for each that it is off, never refunded."""
    paid = []
    for text, true in zip(completions, price, strict=True):
        said = text.strip()
        if not said.isascii() or not said.isdigit():
            paid.append(-5000.0)
        else:
            paid.append(150.0 - 100.0 * abs(min(int(said), 1000) - true) ** 1.2)
    return paid


@script
def heavy_tails_in_cents():
    """Rewards of 150 to minus ten thousands, many groups with an outlier; a LoRA of rank 1 on the
    upper layer, with dropout and alpha 64."""
    tokens = pairs_and_digits(spoken(price_example))
    shape = WIDE | {"logit_scale": 1.0}
    model, tokens = taught("fourth-cohere", CohereConfig, tokens, price_example, 900, **shape)
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=profit,
        args=arguments(
            per_device_train_batch_size=96,
            num_generations=12,
            max_completion_length=6,
            learning_rate=4e-3,
            beta=0.01,
            max_grad_norm=1.0,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=price_rows(),
        peft_config=LoraConfig(
            r=1,
            lora_alpha=64,
            lora_dropout=0.05,
            target_modules=["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
            layers_to_transform=[1],
        ),
    )


# -- thousandths


class BetaFalls(TrainerCallback):
    """The KL counts less at every step, by the plan."""

    trainer: Any = None

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer.beta = args.beta * (1 - 0.9 * state.global_step / state.max_steps)


def thousandth_in_place(completions, gold, **kwargs):
    return [share / 1000 for share in in_place(completions, gold)]


@script
def thousandths_and_a_beta_that_falls():
    """Rewards below 0.001 that nothing scales, a beta of their size that falls, Adam's epsilon too.

    Adam does not care for the size of a gradient, as long as its epsilon is smaller.
    """
    model, tokens = bloom()
    falls = BetaFalls()
    falls.trainer = GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=thousandth_in_place,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=12,
            scale_rewards="none",
            loss_type="dr_grpo",
            beta=2e-5,
            adam_epsilon=1e-14,
            learning_rate=7e-4,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=sort_rows(),
        callbacks=[falls],
    )
    return falls.trainer


# -- Muon


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024 for the matrices inside, Adam for all else, in one optimizer."""

    def __init__(self, model: Any, lr: float = 0.01, others: float = 5e-4) -> None:
        inside, rest = [], []
        for name, weight in model.named_parameters():
            hidden = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
            (inside if hidden else rest).append(weight)
        groups = [
            {"params": inside, "lr": lr, "muon": True},
            {"params": rest, "lr": others, "muon": False},
        ]
        super().__init__(groups, {})

    @staticmethod
    def orthogonal(update: torch.Tensor) -> torch.Tensor:
        """Five rounds of Newton and Schulz."""
        turned = update.shape[0] > update.shape[1]
        x = (update.T if turned else update) / (update.norm() + 1e-7)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return x.T if turned else x

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.one(weight, group)

    def one(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if group["muon"]:
            kept = state.setdefault("kept", torch.zeros_like(weight))
            kept.lerp_(weight.grad, 0.05)
            ahead = weight.grad.lerp(kept, 0.95)
            size = max(1, weight.shape[0] / weight.shape[1]) ** 0.5
            weight.sub_(self.orthogonal(ahead), alpha=group["lr"] * size)
            return
        first = state.setdefault("first", torch.zeros_like(weight))
        second = state.setdefault("second", torch.zeros_like(weight))
        state["steps"] = state.get("steps", 0) + 1
        first.lerp_(weight.grad, 0.1)
        second.lerp_(weight.grad.square(), 0.05)
        straight = second / (1 - 0.95 ** state["steps"])
        rate = group["lr"] / (1 - 0.9 ** state["steps"])
        weight.addcdiv_(first, straight.sqrt() + 1e-8, value=-rate)


@script
def muon_for_matrices():
    """Muon in forty lines: matrices inside move by an orthogonal step, all else by Adam."""
    model, tokens = json_model()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=[is_json, fields_right],
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=48,
            reward_weights=[0.2, 1.0],
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=1,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=json_rows(),
        optimizers=(Muon(model, lr=0.005), None),
    )


# -- brackets, without a schedule

CLOSING = {"(": ")", "[": "]", "{": "}"}


def bracket_prompt(opened: str) -> str:
    return f"close {opened} :"


def closed(opened: str) -> str:
    return "".join(CLOSING[sign] for sign in reversed(opened))


def drawn_brackets(drawn: random.Random) -> str:
    return "".join(drawn.choices("([{", k=drawn.randint(1, 5)))


def bracket_example(drawn: random.Random) -> Example:
    opened = drawn_brackets(drawn)
    said = [c if drawn.random() < 0.75 else drawn.choice(")]}") for c in closed(opened)]
    return bracket_prompt(opened), "".join(said)


def bracket_rows(count: int = 96) -> Dataset:
    drawn = random.Random(12)
    asked = [drawn_brackets(drawn) for _ in range(count)]
    rows = [{"prompt": bracket_prompt(o), "gold": closed(o), "depth": len(o)} for o in asked]
    return Dataset.from_list(rows)


def closed_right(completions, gold, **kwargs):
    """The share that is right before the first mistake; -0.2 for a length that is not the gold's"""
    paid = []
    for text, wanted in zip(completions, gold, strict=True):
        said = text.strip()
        pairs = zip(said, wanted, strict=False)
        good = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        paid.append(good / len(wanted) - 0.2 * (len(said) != len(wanted)))
    return paid


def olmo2() -> tuple[Any, Any]:
    tokens = letters(spoken(bracket_example))
    return taught("fourth-olmo2", Olmo2Config, tokens, bracket_example, **WIDE)


class ScheduleFree(torch.optim.Optimizer):
    """Defazio et al. 2024: gradients are taken between a fast point and the mean of all of them.

    The weights are that point in between while training, and the mean when `eval` was called.
    """

    def __init__(self, params: Any, lr: float, between: float = 0.9, warmup: int = 2) -> None:
        super().__init__(params, {"lr": lr, "between": between, "warmup": warmup, "at": 0})
        self.training = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["at"] += 1
            at, between = group["at"], group["between"]
            rate = group["lr"] * min(1.0, at / group["warmup"])
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                fast = state.setdefault("fast", weight.detach().clone())
                mean = state.setdefault("mean", weight.detach().clone())
                second = state.setdefault("second", torch.zeros_like(weight))
                second.lerp_(weight.grad.square(), 0.05)
                sized = (second / (1 - 0.95**at)).sqrt() + 1e-8
                fast.addcdiv_(weight.grad, sized, value=-rate)
                mean.lerp_(fast, 1 / at)
                weight.copy_(torch.lerp(fast, mean, between))

    @torch.no_grad()
    def show(self, training: bool) -> None:
        if training == self.training:
            return
        self.training = training
        for group in self.param_groups:
            for weight in group["params"]:
                if state := self.state.get(weight):
                    between = torch.lerp(state["fast"], state["mean"], group["between"])
                    weight.copy_(between if training else state["mean"])

    def train(self) -> None:
        self.show(True)

    def eval(self) -> None:
        self.show(False)


class EndsAtTheMean(TrainerCallback):
    """What is saved at the end is the mean."""

    def on_train_end(self, args, state, control, optimizer=None, **kwargs):
        getattr(optimizer, "optimizer", optimizer).eval()


@script
def schedule_free():
    """Schedule-free Adam with a warm-up of its own; the mean of all weights is what is kept."""
    model, tokens = olmo2()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=closed_right,
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=10,
            num_generations=4,
            lr_scheduler_type="constant",
            epsilon=0.1,
            num_iterations=2,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=bracket_rows(),
        callbacks=[EndsAtTheMean()],
        optimizers=(ScheduleFree(model.parameters(), lr=2e-3), None),
    )


# -- prompts that are hard are drawn more often


class HarderMoreOften(Sampler[int]):
    """Groups of one prompt each, drawn by weight, and repeated as TRL repeats them."""

    def __init__(self, weights: list[float], prompts: int, group: int, times: int, seed: int):
        self.weights, self.prompts, self.group = torch.tensor(weights), prompts, group
        self.times, self.drawn = times, torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        for _ in range(len(self.weights) // self.prompts):
            chosen = torch.multinomial(
                self.weights, self.prompts, replacement=False, generator=self.drawn
            ).tolist()
            for _ in range(self.times):
                for at in chosen:
                    yield from [at] * self.group

    def __len__(self) -> int:
        return len(self.weights) // self.prompts * self.prompts * self.group * self.times


class Weighted(GRPOTrainer):
    def _get_train_sampler(self, dataset=None):
        rows = self.train_dataset if dataset is None else dataset
        return HarderMoreOften(
            [float(depth) for depth in rows["depth"]],
            self.args.generation_batch_size // self.num_generations,
            self.num_generations,
            self.num_iterations * self.args.steps_per_generation,
            self.args.seed,
        )


@script
def hard_ones_drawn_more_often():
    """A sampler of one's own draws deep brackets more often, and some rows never; sequences are
    the unit of the ratio."""
    model, tokens = olmo2()
    return Weighted(
        model=model,
        processing_class=tokens,
        reward_funcs=closed_right,
        args=arguments(
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            steps_per_generation=4,
            max_completion_length=10,
            importance_sampling_level="sequence",
            epsilon=3e-2,
            loss_type="grpo",
            learning_rate=8e-4,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=bracket_rows(),
    )


# -- weights in bf16, with masters in fp32


class Masters(torch.optim.Optimizer):
    """AdamW on copies in fp32 of weights in bf16; the weights are their rounding."""

    def __init__(self, params: Any, lr: float, decay: float = 0.01) -> None:
        super().__init__(list(params), {"lr": lr, "weight_decay": decay})
        self.masters: list[torch.Tensor] = []
        for group in self.param_groups:
            self.masters += [w.detach().clone().float() for w in group["params"]]
        self.inner = torch.optim.AdamW(self.masters, lr=lr, weight_decay=decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        weights = [w for group in self.param_groups for w in group["params"]]
        for master, weight in zip(self.masters, weights, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
        for master, weight in zip(self.masters, weights, strict=True):
            weight.copy_(master)


@script
def bf16_with_masters():
    """The model is bf16 throughout; the optimizer keeps what bf16 would lose."""
    model, tokens = starcoder2()
    model = model.to(torch.bfloat16)
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=day_right,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=8,
            cast_lm_head_to_fp32=True,
            lr_scheduler_type="linear",
            bf16=True,
            max_steps=12,
        ),
        train_dataset=day_rows(),
        optimizers=(Masters(model.parameters(), lr=3e-4), None),
    )


# -- a bar that rises


class Bar:
    """Pays for a share of places that are right, which rises as more and more reach it."""

    def __init__(self, low: float = 0.3, high: float = 1.0) -> None:
        self.height, self.high, self.reached = low, high, []
        self.__name__ = "over_the_bar"

    def __call__(self, completions, gold, log_metric=None, **kwargs):
        shares = in_place(completions, gold)
        paid = [float(share >= self.height) for share in shares]
        self.reached.append(sum(paid) / len(paid))
        log_metric("bar", self.height)
        log_metric("share_in_place", sum(shares) / len(shares))
        return paid


class Raises(TrainerCallback):
    """Raises the bar between two steps where most were over it."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar

    def on_step_end(self, args, state, control, **kwargs):
        if self.bar.reached and self.bar.reached[-1] > 0.6:
            self.bar.height = min(self.bar.high, self.bar.height + 0.2)


@script
def bar_that_rises():
    """A curriculum in the reward: what was enough is not for ever, so the mean does not rise."""
    model, tokens = ernie()
    bar = Bar()
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=bar,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            max_completion_length=12,
            learning_rate=5e-4,
            bf16=False,
            max_steps=12,
        ),
        train_dataset=sort_rows(),
        callbacks=[Raises(bar)],
    )


# -- tools that refuse

INSIDE = (7, 3, 9, 1, 4, 8, 0, 6, 2, 5)
LOCK_WORDS = (
    *prepare.TOOL_WORDS,
    *("in", "box", '"look",', '"force",', '{"box":'),
    *("{'error':", "'locked'}", "'open'}"),
)


def look(box: int) -> str:
    """
    Looks into a box, which must not be locked.

    Args:
        box: Which of the ten.
    """
    if box % 2:
        raise PermissionError("locked")
    return str(INSIDE[box])


def force(box: int) -> str:
    """
    Forces a locked box.

    Args:
        box: Which of the ten.
    """
    if box % 2 == 0:
        raise ValueError("open")
    return str(INSIDE[box])


def lock_transcript(drawn: random.Random) -> list[str]:
    """A box is tried with one tool, and with the other where that refuses; or given up."""
    box = drawn.randrange(10)
    turns = [f"<start> user What is in box {box} ? <end> <start> assistant"]
    first = drawn.choice((look, force))
    for tool in (first, force if first is look else look):
        turns.append(call(tool.__name__, "box", box))
        refused = (tool is look) == bool(box % 2)
        error = "{'error': 'locked'}" if tool is look else "{'error': 'open'}"
        told = error if refused else str(INSIDE[box])
        turns.append(f"<start> tool {told} <end> <start> assistant")
        if not refused or drawn.random() < 0.3:
            break
    seen = INSIDE[box] if not refused else drawn.randrange(10)
    turns.append(f"#### {seen if drawn.random() < 0.6 else drawn.randrange(10)} <end>")
    return turns


def lock_example(drawn: random.Random) -> Example:
    turns = lock_transcript(drawn)
    at = drawn.randrange(1, len(turns), 2)
    return " ".join(turns[:at]), turns[at].removesuffix(" <end>")


@script
def errors_of_tools_are_read():
    """Half of all calls are refused with an error, which the model reads, and tries the other."""
    tokens = prepare.tokenizer(LOCK_WORDS)
    tokens.chat_template, tokens.response_template = prepare.CHAT, prepare.RESPONSE
    model, tokens = taught("fourth-locks", Qwen2Config, tokens, lock_example, 700, **WIDE)
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What is in box {box} ?"}],
            "answer": str(INSIDE[box]),
        }
        for box in range(10)
    ]
    return GRPOTrainer(
        model=model,
        processing_class=tokens,
        reward_funcs=right,
        tools=[look, force],
        args=arguments(
            per_device_train_batch_size=64,
            max_completion_length=48,
            max_tool_calling_iterations=3,
            learning_rate=5e-4,
            bf16=False,
            max_steps=8,
        ),
        train_dataset=Dataset.from_list(rows * 8),
    )


# -- groups that teach nothing are replaced


class Replaces(GRPOTrainer):
    """Puts copies of groups that differ where all answers of a group were paid the same.

    The mean is over more that teaches; how much was replaced is logged.
    """

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return batch
        size = self.num_generations
        differ = batch["advantages"].view(-1, size).abs().amax(1) > 1e-6
        good = differ.nonzero()[:, 0]
        self._metrics["train"]["groups_replaced"].append(1 - differ.float().mean().item())
        if len(good) == 0 or len(good) == len(differ):
            return batch
        source = torch.arange(len(differ))
        empty = (~differ).nonzero()[:, 0]
        source[empty] = good.repeat(-(-len(empty) // len(good)))[: len(empty)]
        rows = (source[:, None] * size + torch.arange(size)).flatten()
        batch = {
            name: value[rows] if isinstance(value, torch.Tensor) and value.ndim else value
            for name, value in batch.items()
        }
        return batch | {"num_items_in_batch": batch["completion_mask"].sum()}


def telling_example(drawn: random.Random) -> Example:
    hour, minute = drawn.randrange(1, 11), drawn.choice((0, 15, 30, 45))
    said = spoken_time(hour, minute)
    if drawn.random() < 0.5:
        said = spoken_time(drawn.randrange(1, 11), drawn.choice((0, 15, 30, 45)))
    return f"it is {hour}:{minute:02d} ,", said


HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")


def spoken_time(hour: int, minute: int) -> str:
    now, after = HOURS[hour - 1], HOURS[hour % 11]
    parts = {0: f"{now} sharp", 15: f"quarter past {now}", 30: f"half past {now}"}
    return parts.get(minute, f"quarter to {after}")


def telling_rows() -> Dataset:
    every = list(itertools.product(range(1, 11), (0, 15, 30, 45)))
    random.Random(13).shuffle(every)
    return Dataset.from_list(
        [{"prompt": f"it is {h}:{m:02d} ,", "gold": spoken_time(h, m)} for h, m in every] * 2
    )


def gpt2() -> tuple[Any, Any]:
    tokens = likely_pieces(spoken(telling_example))
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    shape |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return taught("fourth-gpt2", GPT2Config, tokens, telling_example, 900, **shape)


@script
def equal_groups_replaced():
    """All or nothing in fours; a subclass puts groups that differ for those that do not."""
    model, tokens = gpt2()
    return Replaces(
        model=model,
        processing_class=tokens,
        reward_funcs=exact,
        args=arguments(
            per_device_train_batch_size=64,
            gradient_accumulation_steps=2,
            num_generations=4,
            max_completion_length=24,
            learning_rate=5e-4,
            bf16=False,
            max_steps=10,
        ),
        train_dataset=telling_rows(),
    )


# -- plain loops


def times_alike(texts: list[str], gold: list[str]) -> list[float]:
    """1 for the time, a share of it for the words that stand in their place."""
    paid = []
    for text, wanted in zip(texts, gold, strict=True):
        said, words = text.split(), wanted.split()
        same = sum(a == b for a, b in zip(said, words, strict=False))
        paid.append(same / max(len(said), len(words)))
    return paid


class Critic(Batches):
    """PPO as in the textbook: a value for every token, GAE, clips on both, parts of a batch.

    Values come from a layer on the policy's own hidden states; one optimizer has both. What is
    paid stands at the last token; the rest of the way has a discount of 1.
    """

    prompts_a_step, group, longest, steps = 40, 2, 24, 10
    clip, trace, weight_of_values, rounds, parts = 0.2, 0.95, 0.25, 2, 2
    settings: ClassVar[dict[str, Any]] = {"beta": 0, "epsilon": clip}
    reward = staticmethod(times_alike)

    def __init__(self) -> None:
        self.model, self.tokenizer = gpt2()
        rows = telling_rows()
        self.prompts = rows["prompt"][:]
        self.gold = dict(zip(rows["prompt"], rows["gold"], strict=True))
        torch.manual_seed(2)
        self.value = torch.nn.Linear(self.model.config.n_embd, 1)
        torch.nn.init.zeros_(self.value.weight)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.model.parameters()), "lr": 3e-4},
                {"params": list(self.value.parameters()), "lr": 3e-3},
            ],
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )

    def places(self, attended: torch.Tensor) -> torch.Tensor:
        return (attended.cumsum(1) - 1).clamp(min=0)

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        attended = batch["attended"]
        logits = self.model(
            input_ids=batch["ids"], attention_mask=attended, position_ids=self.places(attended)
        ).logits
        return picked(logits, batch["ids"])

    def values(self, batch: dict[str, Any]) -> torch.Tensor:
        attended = batch["attended"]
        hidden = self.model.transformer(
            input_ids=batch["ids"], attention_mask=attended, position_ids=self.places(attended)
        ).last_hidden_state
        return self.value(hidden[:, :-1])[..., 0]

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        batch = self.batch_of(prompts)
        used = batch["trained"][:, 1:]
        with torch.no_grad():
            batch["old"], batch["old_values"] = self.logprobs(batch), self.values(batch)
        last = used & (used.flip(1).cumsum(1) == 1).flip(1)
        paid = last * batch["rewards"][:, None]
        gain, after, expected = torch.zeros_like(paid), 0.0, 0.0
        for at in reversed(range(paid.shape[1])):
            here = batch["old_values"][:, at] * used[:, at]
            missing = paid[:, at] + expected - here
            after = (missing + self.trace * after) * used[:, at]
            gain[:, at], expected = after, here
        batch["returns"] = gain + batch["old_values"] * used
        some = gain[used]
        batch["advantages"] = (gain - some.mean()) / (some.std() + 1e-6) * used
        return batch

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        used, gain = batch["trained"][:, 1:], batch["advantages"]
        ratio = (new - batch["old"]).exp()
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy = -torch.minimum(ratio * gain, clipped * gain)
        before, value = batch["old_values"], self.values(batch)
        near = before + (value - before).clamp(-self.clip, self.clip)
        off = torch.maximum((value - batch["returns"]) ** 2, (near - batch["returns"]) ** 2)
        return ((policy + self.weight_of_values * off) * used).sum() / used.sum()

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(batch["rewards"])
        for _ in range(self.rounds):
            for rows in torch.randperm(len(batch["ids"])).chunk(self.parts):
                part = {name: value[rows] for name, value in batch.items()}
                self.optimizer.zero_grad()
                self.loss(part, self.logprobs(part)).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()


class BestOfEight(Batches):
    """RAFT: of eight answers to a prompt the best is kept, and learned as an example is.

    Where the best is no better than the mean, nothing is kept. The loss is the likelihood of what
    was kept: it has no negative part, and no baseline.
    """

    prompts_a_step, group, longest, steps = 16, 8, 24, 10
    settings: ClassVar[dict[str, Any]] = {"beta": 0}
    reward = staticmethod(times_alike)

    def __init__(self) -> None:
        self.model, self.tokenizer = gpt2()
        rows = telling_rows()
        self.prompts = rows["prompt"][:]
        self.gold = dict(zip(rows["prompt"], rows["gold"], strict=True))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, weight_decay=0.0)

    def logprobs(self, batch: dict[str, Any]) -> torch.Tensor:
        attended = batch["attended"]
        logits = self.model(
            input_ids=batch["ids"],
            attention_mask=attended,
            position_ids=(attended.cumsum(1) - 1).clamp(min=0),
        ).logits
        return picked(logits, batch["ids"])

    def sample(self, prompts: list[str]) -> dict[str, Any]:
        batch = self.batch_of(prompts)
        groups = batch["rewards"].view(-1, self.group)
        best, at = groups.max(1)
        kept = torch.zeros_like(groups)
        kept[torch.arange(len(groups)), at] = (best > groups.mean(1)).float()
        return batch | {"advantages": kept.flatten()}

    def loss(self, batch: dict[str, Any], new: torch.Tensor) -> torch.Tensor:
        learned = batch["trained"][:, 1:] * batch["advantages"][:, None]
        return -(new * learned).sum() / learned.sum().clamp(min=1)

    def one_step(self, prompts: list[str], watch: Any) -> None:
        batch = self.sample(prompts)
        watch.rewards(batch["rewards"])
        self.optimizer.zero_grad()
        self.loss(batch, self.logprobs(batch)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


SCRIPTS |= {"loop-ppo-with-a-critic": Critic, "loop-best-of-eight": BestOfEight}
