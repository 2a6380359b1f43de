"""Trainings that keep state in optimizers, callbacks, data and rewards of the user's own."""

import itertools
import random
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.tiny import tiny_model, tokenizer_with

WORDS = ("one", "two", "three", "four", "five", "six")
SETTINGS = {
    "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 6,
    "max_steps": 2, "learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "bf16": False,
    "gradient_checkpointing": False, "disable_tqdm": True, "save_strategy": "no", "seed": 3,
}  # fmt: skip
asked = 0
SEEN = {"times": [], "texts": Counter()}


def prompts():
    return [f"say {word} now" for word in WORDS]


def letters(completions, **_):
    return [float(sum(map(ord, one)) % 7) for one in completions]


def trainer_in(
    folder, *, reward=letters, data=None, callbacks=(), optimizer=None, kind=None, **changes
):
    """A small trainer as anybody writes one; `optimizer` is made of the model's weights."""
    tokenizer = tokenizer_with()
    model = tiny_model(vocab=len(tokenizer))
    model.save_pretrained(folder / "start")
    model.config._name_or_path = str(folder / "start")  # RLOO reads its reference from there
    trainer, config = kind or (GRPOTrainer, GRPOConfig)
    rows = data if isinstance(data, Dataset) else Dataset.from_dict({"prompt": prompts()})
    made = None if optimizer is None else optimizer(list(model.parameters()))
    found = trainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=rows,
        args=config(output_dir=str(folder), **{**SETTINGS, **changes}),
        callbacks=list(callbacks),
        optimizers=(made, None),
    )
    found.train_dataset = rows if data is None else data  # TRL refuses a class of the user's
    return found


def shifted(completions, by):
    """A reward that another count makes another training."""
    return [value * (-1) ** (by + at) for at, value in enumerate(letters(completions))]


# -- rewards


def of_function_attribute():
    def reward(completions, **_):
        reward.calls = getattr(reward, "calls", 0) + 1
        return shifted(completions, reward.calls)

    return reward, lambda: getattr(reward, "calls", 0)


def of_closure():
    calls, history = 0, deque(maxlen=3)

    def reward(completions, **_):
        nonlocal calls
        calls += 1
        history.append(calls)
        return shifted(completions, calls + len(history))

    return reward, lambda: (calls, list(history))


def of_module_global():
    global asked
    asked = 0
    SEEN["times"].clear()
    SEEN["texts"].clear()

    def reward(completions, **_):
        note(completions)
        return shifted(completions, asked + len(SEEN["times"]))

    return reward, lambda: (asked, list(SEEN["times"]), dict(SEEN["texts"]))


def note(completions):
    global asked
    asked += 1
    SEEN["times"].append(asked)
    SEEN["texts"].update(completions)


class Judge:
    """Keeps everything in itself, and one number for all judges."""

    __name__ = "Judge"
    judged = 0

    def __init__(self):
        self.calls, self.mean = 0, torch.zeros(3)
        self.rng, self.numpy = random.Random(1), np.random.default_rng(2)
        self.count = itertools.count()

    def __call__(self, completions, **_):
        self.calls += 1
        Judge.judged += 1
        self.mean.mul_(0.9).add_(self.calls)
        drawn = self.rng.randrange(7) + int(self.numpy.integers(7)) + next(self.count)
        return shifted(completions, self.calls + Judge.judged + drawn)


def of_instance():
    Judge.judged = 0
    judge = Judge()

    def state():
        drawn = (judge.rng.getstate(), str(judge.numpy.bit_generator.state))
        return (judge.calls, Judge.judged, judge.mean.tolist(), *drawn, repr(judge.count))

    return judge, state


# -- optimizers


class Lookahead(torch.optim.Optimizer):
    """Around another: every second step goes half of the way back."""

    def __init__(self, weights):
        self.inner = torch.optim.AdamW(weights, lr=1e-2)
        self.slow = [weight.detach().clone() for weight in weights]
        self.steps = 0
        super().__init__(weights, {"lr": 1e-2})
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        self.steps += 1
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight, slow in zip(weights, self.slow, strict=True):
            slow.add_(weight - slow, alpha=0.5)
            if self.steps % 2:
                weight.data = slow.clone()

    def own(self):
        return self.slow, self.steps


class Helped(torch.optim.SGD):
    """Its momentum is kept by a helper."""

    def __init__(self, weights):
        super().__init__(weights, lr=1e-1)
        self.helper = SimpleNamespace(mean=[torch.zeros_like(one) for one in weights], steps=0)

    @torch.no_grad()
    def step(self, closure=None):
        self.helper.steps += 1
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight, mean in zip(weights, self.helper.mean, strict=True):
            mean.mul_(0.9).add_(weight.grad)
            weight.add_(mean, alpha=-1e-2 * self.helper.steps)

    def own(self):
        return self.helper.mean, self.helper.steps


class Factored(torch.optim.SGD):
    """As SOAP and Shampoo do, with lists and dictionaries of tensors for each weight."""

    def __init__(self, weights):
        super().__init__(weights, lr=1e-1)
        for one in weights:
            self.state[one] = {"factors": [torch.ones_like(one)], "kept": {"n": torch.zeros(())}}

    @torch.no_grad()
    def step(self, closure=None):
        for weight, state in self.state.items():
            (factor,), steps = state["factors"], state["kept"]["n"]
            factor.add_(weight.grad.square())
            steps.add_(1)
            weight.add_(weight.grad / factor.sqrt() / steps, alpha=-1e-1)

    def own(self):
        state = list(self.state.values())
        return [one["factors"][0] for one in state], [one["kept"]["n"] for one in state]


# -- callbacks


class Ema(TrainerCallback):
    """Averages the weights in place, and pulls them towards the average."""

    def on_init_end(self, args, state, control, model=None, **_):
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    @torch.no_grad()
    def on_optimizer_step(self, args, state, control, model=None, **_):
        for name, weight in model.named_parameters():
            mean = self.shadow[name].lerp_(weight, 0.5)
            weight.lerp_(mean, 0.5)

    def own(self):
        return list(self.shadow.values())


class Plan:
    __slots__ = ("rates", "step")

    def __init__(self):
        self.step, self.rates = 0, []


class Planned(TrainerCallback):
    """Scales the rate by a plan that an object of its own keeps."""

    def __init__(self):
        self.plan = Plan()

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
        self.plan.step += 1
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / self.plan.step
        self.plan.rates.append(1e-2 / self.plan.step)

    def own(self):
        return self.plan.step, self.plan.rates


# -- data


class Drawn(torch.utils.data.Dataset):
    """Each row is drawn when it is asked for."""

    column_names = ("prompt",)

    def __init__(self):
        self.rng, self.visits = torch.Generator().manual_seed(5), Counter()

    def __len__(self):
        return len(WORDS)

    def __getitem__(self, row):
        row = 0 if isinstance(row, str) else row
        self.visits[row] += 1
        word = WORDS[int(torch.randint(len(WORDS), (), generator=self.rng))]
        return {"prompt": f"say {word} {self.visits[row]} times"}

    def own(self):
        return self.rng.get_state(), dict(self.visits)


class Transform:
    """Of a dataset of `datasets`, with a state of its own."""

    def __init__(self):
        self.rng = np.random.RandomState(4)

    def __call__(self, rows):
        return {"prompt": [f"{text} {self.rng.randint(1000)}" for text in rows["prompt"]]}

    def own(self):
        return self.rng.get_state()[1].tolist(), self.rng.get_state()[2]


def drawn():
    data = Drawn()
    return data, data.own


def transformed():
    transform = Transform()
    data = Dataset.from_dict({"prompt": prompts()})
    data.set_transform(transform)
    return data, transform.own


class Training:
    """A trainer with state in its rewards and, where given, in all else that a user may write."""

    def __init__(self, paid, data=None, callback=None, optimizer=None):
        self.paid, self.data, self.callback, self.optimizer = paid, data, callback, optimizer

    def build(self, folder, **changes):
        """The trainer, and for every place that keeps a state what it holds."""
        reward, state = self.paid()
        own, steppers = {"reward": state}, []
        if self.data:
            changes["data"], own["data"] = self.data()
        if self.callback:
            callback = self.callback()
            changes["callbacks"], own["callback"] = [callback], callback.own
        if self.optimizer:
            changes["optimizer"] = lambda w: steppers.append(self.optimizer(w)) or steppers[0]
            own["optimizer"] = lambda: steppers[0].own()
        trainer = trainer_in(folder, reward=reward, **changes)
        return trainer, lambda: {place: read() for place, read in own.items()}


STATEFUL = {
    "a function's attribute, a generator, averaged weights, an optimizer around another": Training(
        of_function_attribute, drawn, Ema, Lookahead
    ),
    "a closure, a transform, an object of a callback, a helper of the optimizer": Training(
        of_closure, transformed, Planned, Helped
    ),
    "a global of a module and lists of tensors in the optimizer's state": Training(
        of_module_global, optimizer=Factored
    ),
    "an instance that pays": Training(of_instance),
}
"""Eleven places that keep state, those that do not touch each other in one training."""
