"""What a run really does, against what was asked for.

TRL, PEFT and transformers change values on the way: a default that wins, a scheduler that ignores
its warm-up, an adapter that matched nothing. Each of those has cost somebody weeks. So the built
trainer is read back and compared; a difference is an error.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformers import TrainerCallback

from flatline.config import RunConfig, prompts_per_step
from flatline.errors import ConfigError, ModelError
from flatline.live.held import elements
from flatline.live.trl.grpo import GrpoTrainer
from flatline.training.rollouts import limits_of, sampling_of


class Difference(NamedTuple):
    """A value that is not what was asked for."""

    name: str
    asked: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.name}: asked for {self.asked!r}, but it is {self.found!r}"


def effective(trainer: GrpoTrainer, config: RunConfig) -> dict[str, Any]:
    """The run as it is set up, by part. Everything in it is plain data."""
    args = trainer.args
    processes = args.world_size
    trainable = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    return {
        "sizes": {
            "processes": processes,
            "completions_per_step": args.generation_batch_size,
            "prompts_per_step": args.generation_batch_size // args.num_generations,
            "completions_per_backward": args.per_device_train_batch_size,
            "optimizer_steps_per_batch": args.num_iterations,
            "training_problems": len(trainer.train_dataset),
        },
        "weights": {
            "trainable": sum(map(elements, trainable.values())),
            "all": sum(map(elements, trainer.model.parameters())),
            "dtype": sorted({str(p.dtype) for p in trainable.values()}),
            "device": str(args.device),
        },
        "lora": _lora(trainer.model),
        "reference": _reference(trainer),
        "sampler": {
            "engine": config.engine,
            **_record(sampling_of(config)),
            **_record(limits_of(config)),
        },
        "reward": dict(
            zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
        ),
    }


def check_arguments(trainer: GrpoTrainer, asked: Mapping[str, Any]) -> None:
    """The built trainer's TRL arguments are the ones that were stated."""
    refuse(list(_argument_differences(trainer.args, asked)))


def check_sizes(trainer: GrpoTrainer, config: RunConfig) -> None:
    wanted = prompts_per_step(config, trainer.args.world_size)
    found = trainer.args.generation_batch_size // trainer.num_generations
    refuse([Difference("prompts per step", wanted, found)] if wanted != found else [])


def check_lora(trainer: GrpoTrainer, config: RunConfig) -> None:
    """Adapters are where they were asked for, and nothing else is trained."""
    trainable = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    if not config.peft:
        frozen = [n for n, p in trainer.model.named_parameters() if not p.requires_grad]
        refuse([Difference("frozen weights", 0, len(frozen))] if frozen else [])
        return
    strays = [name for name in trainable if "lora_" not in name]
    refuse([Difference("trained besides LoRA", [], strays[:3])] if strays else [])
    found = trainer.model.peft_config["default"]
    asked: dict[str, float] = {"r": config.lora_r, "lora_alpha": config.lora_alpha}
    asked["lora_dropout"] = config.lora_dropout
    refuse(
        [Difference(n, v, getattr(found, n)) for n, v in asked.items() if getattr(found, n) != v]
    )
    if not trainable:
        raise ModelError(
            f"LoRA on {config.lora_targets!r} gives nothing to train.\n"
            "Type `--lora-targets all-linear`."
        )


def check_optimizer(optimizer: Any, trainer: GrpoTrainer, config: RunConfig) -> None:
    """Every trainable weight is in the optimizer once, with the stated rate and decay."""
    groups = optimizer.param_groups
    held = [id(p) for group in groups for p in group["params"]]
    wanted = [p for p in trainer.model.parameters() if p.requires_grad]
    found = []
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if not sharded and sorted(held) != sorted(map(id, wanted)):
        found.append(Difference("weights in the optimizer", len(wanted), len(held)))
    for group in groups:
        rate = group.get("initial_lr", group["lr"])
        if rate != config.rate:
            found.append(Difference("learning rate", config.rate, rate))
        betas = (config.adam_beta1, config.adam_beta2)
        if tuple(group["betas"]) != betas:
            found.append(Difference("betas", betas, tuple(group["betas"])))
        if group["weight_decay"] not in (config.weight_decay, 0.0):
            found.append(Difference("weight decay", config.weight_decay, group["weight_decay"]))
    refuse(found)


class OptimizerCheck(TrainerCallback):  # type: ignore[misc]
    """Looks at the optimizer when it exists, before the first step."""

    def __init__(self, trainer: GrpoTrainer, config: RunConfig) -> None:
        self._trainer, self._config = trainer, config

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs.get("optimizer")
        # A planted fault may be one of the optimizer, and the run is to show it.
        if optimizer is not None and self._config.fault is None:
            check_optimizer(optimizer, self._trainer, self._config)


def refuse(differences: list[Difference]) -> None:
    if differences:
        lines = "\n".join(map(str, differences))
        raise ConfigError(
            f"The trainer is not set up as asked:\n{lines}\n"
            "The run would not answer your question.\n"
            "This is a change in TRL, PEFT or transformers: use the pinned versions "
            "(constraints.txt), or report it."
        )


def _argument_differences(args: Any, asked: Mapping[str, Any]) -> Iterator[Difference]:
    for name, value in asked.items():
        found = getattr(args, name)
        plain = getattr(found, "value", found)  # enums of transformers
        if name == "report_to" and value == ["none"]:
            plain = plain or ["none"]
        if plain != value:
            yield Difference(name, value, plain)


def _lora(model: Any) -> dict[str, Any] | None:
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return None
    config = adapters["default"]
    layers = [n for n, m in model.named_modules() if hasattr(m, "lora_A")]
    return {
        "r": config.r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "layers": len(layers),
        "kinds": sorted({name.rpartition(".")[2] for name in layers}),
    }


def _reference(trainer: GrpoTrainer) -> str:
    if trainer.beta == 0:
        return "none (beta 0)"
    if trainer.ref_model is None:
        return "the policy with its adapter off"
    return f"a copy loaded from {trainer.ref_model.config._name_or_path}"


def _record(values: Any) -> dict[str, Any]:
    return {name: getattr(values, name) for name in values.__slots__}
