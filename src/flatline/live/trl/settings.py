"""What `run.json` says about a trainer that flatline did not build: settings, versions, machine."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flatline.errors import ConfigError
from flatline.live.batch import PROMPT_NAMES
from flatline.live.facts import commit, dropout_of, lora_of, tf32, versions
from flatline.live.trl.grpo import GrpoTrainer
from flatline.live.where.package import TRL, library_of
from flatline.project import Said, project
from flatline.spec.schedule import GIVEN
from flatline.trace.settings import SETTINGS

TRANSFORMERS = "transformers"
"""The engine that samples with the very model that is trained."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What decides the distribution that a completion is drawn from."""
HALF = (torch.bfloat16, torch.float16)
RLOO = "rloo"
ALGORITHMS = {"GMPOTrainer": "gmpo", "RLOOTrainer": RLOO, "GRPOTrainer": "grpo"}
"""By the end of a trainer's name, its own or of what it is built on; the nearest counts."""
SHOWN_BESIDES = frozenset({"image", "images", "video", "videos", "audio"})
"""Columns of the data that a model is shown beside the prompt."""
MOST_COUNTED = 20_000
"""Rows of data whose prompts are counted: a tenth of a second."""
_COUNTED: dict[tuple[str | None, str], int] = {}
"""What was counted, by the fingerprint of the data and its column: a checkup asks many times."""


def run_facts(trainer: GrpoTrainer, told: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a run that is known before its first step."""
    return {
        "source": "attach",
        "versions": versions(),
        "commit": commit(),
        "seed": getattr(trainer.args, "seed", None),
        "fault": None,
        "hardware": _hardware(trainer),
        "settings": {**settings(trainer), **told},
    }


def settings(trainer: GrpoTrainer) -> dict[str, Any]:
    """The trainer's settings under the names of the trace; None where it has none."""
    args = trainer.args
    found = {name: _plain(getattr(args, name, None)) for name in SETTINGS}
    found |= _drawn_with(args)
    found["per_device_batch_size"] = args.per_device_train_batch_size
    found["max_steps"] = trainer.state.max_steps or found["max_steps"]
    found["warmup_steps"] = _warmup(args, found["max_steps"])
    found["lora"] = lora_of(trainer.model)
    found["engine"] = engine_of(trainer)
    found["precision"] = _precision(trainer)
    found["dataset_size"] = _length(getattr(trainer, "train_dataset", None))
    found["prompts_per_step"] = _prompts(found)
    found["tools"] = _tools(trainer)
    found["best_model_by"] = _best_by(args)
    found["lr_scheduler_type"] = _schedule(trainer)
    found["learning_rate"] = _rate(trainer)
    found["reward_weights"] = _weights(trainer)
    found["dropout"] = dropout_of(trainer.model)
    found["distinct_prompts"] = _distinct(getattr(trainer, "train_dataset", None))
    found["prompt_texts"] = _texts(trainer)
    found["algorithm"] = algorithm_of(trainer)
    return found | (_of_rloo(args) if found["algorithm"] == RLOO else {})


def _drawn_with(args: Any) -> dict[str, Any]:
    """What `generation_kwargs` puts in the place of the arguments of the same name: TRL gives it to
    the sampler alone, and the loss keeps `temperature`. Without sampling the temperature is 0."""
    given = getattr(args, "generation_kwargs", None)
    if not isinstance(given, dict):
        return {}
    found = {name: _plain(given[name]) for name in SAMPLING if given.get(name) is not None}
    if given.get("do_sample") is False:
        found["temperature"] = 0.0
    if found.get("temperature", args.temperature) != args.temperature:
        found["loss_temperature"] = args.temperature
    return found


def algorithm_of(trainer: GrpoTrainer) -> str | None:
    """`grpo`, `rloo`, or a name of TRL's for what it builds on GRPO; None for anything else."""
    names = [kind.__name__ for kind in type(trainer).__mro__ if kind.__name__.endswith("Trainer")]
    known = (kind for name in names for end, kind in ALGORITHMS.items() if name.endswith(end))
    return next(known, None)


def _of_rloo(args: Any) -> dict[str, Any]:
    """RLOO under the names of GRPO: nothing is divided by the spread of a group, and a completion
    has one ratio."""
    scale = "batch" if args.normalize_advantages else "none"
    return {"loss_type": RLOO, "scale_rewards": scale, "importance_sampling_level": "product"}


def reward_names(trainer: GrpoTrainer) -> list[str]:
    """By TRL from 0.17 on; before, as it named them in its log."""
    known = getattr(trainer, "reward_func_names", None)
    return list(known) if known is not None else [_called(one) for one in trainer.reward_funcs]


def _called(reward: Any) -> str:
    if isinstance(reward, torch.nn.Module):
        return str(getattr(reward, "config", reward)._name_or_path).rsplit("/", 1)[-1]
    return str(getattr(reward, "__name__", type(reward).__name__))


def truth(trainer: GrpoTrainer, correct: str | None, gold: str | None) -> dict[str, str | None]:
    """What the user says tells right from wrong, here or in the project's file; what is said here
    is refused where nothing has that name."""
    functions = reward_names(trainer)
    _refuse_unknown("correct", correct, functions, "reward function")
    columns = getattr(getattr(trainer, "train_dataset", None), "column_names", None)
    _refuse_unknown("gold", gold, columns, "column of the training data")
    said = project()
    return {
        "correct": correct or _present(said.correct, functions),
        "gold": gold or _present(said.gold, columns),
    }


def _present(said: Said | None, names: Sequence[str] | None) -> str | None:
    """A project may have several trainings: what it names need not be in each."""
    return said.value if said is not None and said.value in (names or ()) else None


def _refuse_unknown(argument: str, name: str | None, known: list[str] | None, what: str) -> None:
    if name is None or known is None or name in known:
        return
    raise ConfigError(
        f"{argument}={name!r} names no {what}.\n"
        "So nothing would say which answers are right.\n"
        f"There are: {', '.join(map(repr, known))}."
    )


def _best_by(args: Any) -> str | None:
    """By which metric the weights are chosen that are there after the training."""
    if not getattr(args, "load_best_model_at_end", False):
        return None
    high = bool(getattr(args, "greater_is_better", False))
    name = getattr(args, "metric_for_best_model", None) or "loss"
    return f"{name}, {'highest' if high else 'lowest'}"


def _schedule(trainer: GrpoTrainer) -> str | None:
    """As asked for by its name; `given` where the user made it, or the optimizer, or the method
    that makes it."""
    made = trainer.lr_scheduler is not None and not getattr(trainer, "_created_lr_scheduler", False)
    method = getattr(type(trainer), "create_scheduler", None)
    own = library_of(str(getattr(method, "__module__", ""))) not in ("transformers", TRL)
    if made or own:
        return GIVEN
    name = _plain(getattr(trainer.args, "lr_scheduler_type", None))
    options = getattr(trainer.args, "lr_scheduler_kwargs", None)
    return f"{name} with options" if options else name


def _rate(trainer: GrpoTrainer) -> float | None:
    """As asked for: of an optimizer that there is, the one it was made with. The trainer's own has
    that of the arguments; the user's has its own, whatever the arguments say."""
    asked: float | None = getattr(trainer.args, "learning_rate", None)
    groups = getattr(getattr(trainer, "optimizer", None), "param_groups", None)
    return float(groups[0].get("initial_lr", groups[0]["lr"])) if groups else asked


def _weights(trainer: GrpoTrainer) -> dict[str, float] | None:
    """As asked for, and not as the trainer keeps them."""
    names = reward_names(trainer)
    asked = getattr(trainer.args, "reward_weights", None) or [1.0] * len(names)
    if len(set(names)) < len(names) or len(asked) != len(names):
        return None
    return dict(zip(names, map(float, asked), strict=True))


def _distinct(dataset: Any) -> int | None:
    """How many prompts the data has; None where it is too long to count."""
    return _different(dataset, (*PROMPT_NAMES, "prompt"))


def _texts(trainer: GrpoTrainer) -> int | None:
    """How many prompts differ; None where a row shows the model more than its prompt: images, or
    what a tool, an environment or somebody's own player says."""
    dataset = getattr(trainer, "train_dataset", None)
    columns = getattr(dataset, "column_names", None) or ()
    environments = getattr(trainer, "environment_factories", None)
    more = environments or not SHOWN_BESIDES.isdisjoint(columns)
    return None if more or _tools(trainer) != 0 else _different(dataset, ("prompt",))


def _different(dataset: Any, names: Sequence[str]) -> int | None:
    """Different values of the first of these columns that the data has."""
    size, columns = _length(dataset), getattr(dataset, "column_names", None)
    if size is None or size > MOST_COUNTED or not isinstance(columns, list):
        return None
    name = next((one for one in names if one in columns), None)
    if name is None:
        return None
    mark = getattr(dataset, "_fingerprint", None)
    if mark is None or (mark, name) not in _COUNTED:
        _COUNTED[mark, name] = len({repr(value) for value in dataset[name]})
    return _COUNTED[mark, name]


def _plain(value: Any) -> Any:
    """Enums of transformers as their text."""
    return getattr(value, "value", value)


def _warmup(args: Any, max_steps: int | None) -> float | None:
    ask = getattr(args, "get_warmup_steps", None)
    if callable(ask) and max_steps and max_steps > 0:
        return int(ask(max_steps))
    return getattr(args, "warmup_steps", None)


def engine_of(trainer: GrpoTrainer) -> str:
    """What samples: a player's own name, `vllm-` and its mode, or `TRANSFORMERS`."""
    player = getattr(trainer, "rollout_func", None)
    if player is not None:
        return str(getattr(player, "name", "rollout_func"))
    if getattr(trainer, "use_vllm", False):
        return f"vllm-{getattr(trainer.args, 'vllm_mode', None) or 'server'}"
    return TRANSFORMERS


def _precision(trainer: GrpoTrainer) -> str:
    """What the trainer computes in: as it was asked to, else as its weights are."""
    for name, asked in (("bfloat16", "bf16"), ("float16", "fp16")):
        mixed = getattr(trainer.accelerator, "mixed_precision", None) == asked
        if mixed or getattr(trainer.args, asked, False):
            return name
    weights = list(trainer.model.parameters())
    held = {weight.dtype for weight in weights}
    half = next((str(kind).removeprefix("torch.") for kind in HALF if kind in held), None)
    if half is not None:
        return half
    return "tf32" if any(weight.is_cuda for weight in weights) and tf32() else "float32"


def _length(dataset: Any) -> int | None:
    return len(dataset) if hasattr(dataset, "__len__") else None


def _prompts(found: Mapping[str, Any]) -> int | None:
    """Prompts behind one optimizer step, over all processes."""
    names = ("per_device_batch_size", "gradient_accumulation_steps", "world_size")
    if any(found[name] is None for name in (*names, "num_generations")):
        return None
    batch, passes, processes = (found[name] for name in names)
    return int(batch * passes * processes) // int(found["num_generations"])


def _tools(trainer: GrpoTrainer) -> int | None:
    """None where somebody's own player decides about turns."""
    if getattr(trainer, "rollout_func", None) is not None:
        return None
    return len(getattr(trainer, "tools", None) or ())


def _hardware(trainer: GrpoTrainer) -> dict[str, Any]:
    device = trainer.accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": str(device.type), "name": name, "cpus": os.cpu_count(), "os": sys.platform}


def stop_ids(trainer: GrpoTrainer) -> set[int]:
    """Tokens that end a completion, as tokenizer and model declare them."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    # Asked for every batch: unwrapping would walk through all modules to look for compiled ones.
    model: Any = trainer.model
    wrapped = getattr(model, "module", None)
    config = getattr(model, "generation_config", getattr(wrapped, "generation_config", None))
    known = [getattr(tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)]
    flat = [one for value in known for one in (value if isinstance(value, list) else [value])]
    return {int(one) for one in flat if one is not None}


def one_turn(trainer: GrpoTrainer) -> bool:
    """Whether a completion is one turn: without tools, environments and players of somebody's."""
    others = ("rollout_func", "tools", "environments", "environment_factory")
    return not any(getattr(trainer, name, None) for name in others)
