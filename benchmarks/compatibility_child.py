"""One version of TRL, tried: every feature on a tiny random model. Prints one line of JSON."""

import inspect
import json
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from tests.tiny import tiny_model, tokenizer_with
from trl import GRPOConfig, GRPOTrainer

import flatline

torch.set_num_threads(1)

CALL = '<tool_call>\n{"name": "look", "arguments": {"query": "a"}}\n</tool_call><|im_end|>'
REPLY = "They work for"


class Absent(Exception):
    """This version of TRL has no such thing."""


def letters(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(str(completion)))) for completion in completions]


def look(query: str) -> str:
    """
    Looks something up.

    Args:
        query: What to look for.
    """
    return f"{REPLY} {query}."


class Library:
    """An environment with one tool."""

    def reset(self, **_: Any) -> None:
        return None

    def look(self, query: str) -> str:
        """
        Looks something up.

        Args:
            query: What to look for.
        """
        return f"{REPLY} {query}."


def trainer_in(folder: Path, *, chat: bool = False, **given: Any) -> Any:
    """KL, two passes per batch and accumulation; with `chat`, prompts are conversations."""
    tokenizer = tokenizer_with()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # transformers 4 adds a third
    model = tiny_model(vocab=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder / "model")
    model.config._name_or_path = str(folder / "model")
    prompts: list[Any] = [f"Who is {i}?" for i in range(8)]
    if chat:
        from trl.chat_template_utils import qwen3_chat_template  # one that TRL can read calls of

        tokenizer.chat_template = qwen3_chat_template
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    args = GRPOConfig(
        output_dir=str(folder / "out"), max_steps=4, per_device_train_batch_size=4,
        num_generations=4, num_iterations=2, gradient_accumulation_steps=2, beta=0.1,
        max_completion_length=128 if chat else 12, learning_rate=1e-2, logging_steps=1,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=letters,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        args=args,
        **given,
    )


def trained(trainer: Any) -> Any:
    torch.manual_seed(1)
    trainer.train()
    return trainer


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def attached(folder: Path) -> dict[str, str]:
    """What the trace of a plain run holds, and whether the run noticed."""
    plain, watched = trainer_in(folder / "a"), trainer_in(folder / "b")
    before = set(vars(watched))
    attachment = flatline.attach(watched, folder / "run")
    trained(plain), trained(watched)
    attachment.detach()
    trace = flatline.Trace.open(folder / "run")
    tokens, rows, steps = trace.tokens(), trace.rollouts, trace.steps
    hooks = {"_compute_loss", "_calculate_rewards", "_generate_and_score_completions"}
    numbers = ("grad_norm", "learning_rate", "kl", "loss", "entropy", "ratio_max")
    checks: dict[str, Callable[[], Any]] = {
        "weights the same": lambda: same_weights(plain, watched),
        "rollouts": lambda: len(rows) == 16 and (trace.groups().size == 4).all(),
        "tokens": lambda: len(tokens.ids) == rows["completion_tokens"].sum(),
        "trainer log-probs": lambda: np.isfinite(tokens.trainer).all(),
        "attention": lambda: tokens.attended.all() and tokens.prompt_attended.all(),
        "reference": lambda: np.isfinite(tokens.reference).all(),
        "rewards": lambda: np.isfinite([*rows["reward"], *trace.parts()["letters"]]).all(),
        "steps": lambda: (
            steps["step"].tolist() == [1, 2, 3, 4]
            and all(np.isfinite(steps[name]).all() for name in numbers)
        ),
        "weights": lambda: set(trace.weights["step"]) == {1, 2, 3, 4},
        "detached": lambda: not (set(vars(watched)) - before) & hooks,
    }
    return {name: _said(check) for name, check in checks.items()}


def callback(folder: Path) -> bool:
    """The same trace and the same weights as with one line."""
    plain = trained(trainer_in(folder / "a"))
    called = trainer_in(folder / "b", callbacks=[flatline.FlatlineCallback(folder / "run")])
    trained(called)
    trace = flatline.Trace.open(folder / "run")
    return same_weights(plain, called) and len(trace.rollouts) == 16 and len(trace.steps) == 4


def checkup(folder: Path) -> bool:
    """No fault claimed of this library, no defect of ours, and nothing left behind."""
    return _healthy(trainer_in(folder / "a"), trainer_in(folder / "b"))


def tools(folder: Path) -> bool:
    return _multi_turn(folder, tools=[look])


def environment_factory(folder: Path) -> bool:
    return _multi_turn(folder, environment_factory=Library)


def _multi_turn(folder: Path, **given: Any) -> bool:
    """Tool output is told from what the model wrote, and a checkup goes through."""
    taken = inspect.signature(GRPOTrainer.__init__).parameters
    if not set(given) <= set(taken):
        raise Absent
    made = [_scripted(trainer_in(folder / name, chat=True, **given)) for name in "ab"]
    fine = _healthy(*made)
    trainer = _scripted(trainer_in(folder / "c", chat=True, **given))
    flatline.attach(trainer, folder / "run")
    trained(trainer)
    trace = flatline.Trace.open(folder / "run")
    tokens = trace.tokens()
    told = ((tokens.author == 1) == (tokens.trained == 1)).all() and (tokens.author == 2).any()
    return bool(fine and told and (trace.rollouts["tool_calls"] == 1).all())


def _scripted(trainer: Any) -> Any:
    """A random model calls no tool, so its first turn is replaced; the rest is its own."""
    tokenizer, generate = trainer.processing_class, trainer.model.generate
    call_T = torch.tensor(tokenizer(CALL, add_special_tokens=False)["input_ids"])

    def scripted(input_ids: torch.Tensor, **given: Any) -> torch.Tensor:
        if REPLY in tokenizer.decode(input_ids[0]):
            result: torch.Tensor = generate(input_ids=input_ids, **given)
            return result
        return torch.cat([input_ids, call_T.expand(len(input_ids), -1)], dim=1)

    trainer.model.generate = scripted
    return trainer


def _healthy(looked_at: Any, left_alone: Any) -> bool:
    report = flatline.checkup(looked_at)
    broken = [f for f in report.findings if f.level.value == "fault" or "defect of" in f.text]
    if broken:
        raise AssertionError("; ".join(f"{one.hypothesis}: {one.text}" for one in broken))
    return report.tested > 10 and same_weights(trained(looked_at), trained(left_alone))


def _said(check: Callable[[], Any]) -> str:
    try:
        return "yes" if check() else "no"
    except Exception as error:
        return f"no ({type(error).__name__})"


def main() -> None:
    works: dict[str, str] = {}
    troubles: dict[str, str] = {}
    recorded: dict[str, str] = {}
    for feature in (callback, checkup, tools, environment_factory, attached):
        name = feature.__name__
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = feature(Path(folder))
                recorded = result if isinstance(result, dict) else recorded
                fine = set(result.values()) == {"yes"} if isinstance(result, dict) else result
                works[name] = "yes" if fine else "no"
            except Absent:
                works[name] = "not in this TRL"
            except ImportError as error:
                works[name] = "TRL refuses"
                troubles[name] = str(error)
            except Exception as error:
                works[name] = f"no ({type(error).__name__})"
                troubles[name] = traceback.format_exc()[-1500:]
    works["attach"] = works.pop("attached")
    found = {"transformers": transformers.__version__, "works": works, "recorded": recorded}
    print(json.dumps({**found, "troubles": troubles}))


if __name__ == "__main__":
    main()
