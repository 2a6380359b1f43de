"""RunConfig: everything that decides the outcome of one run. An arm is `replace(config, ...)`.

Sizes, in TRL's sense (the seeds' flags have the same):

    batch_size                 completions that one device takes through one backward pass
    x gradient_accumulation_steps x processes
                               completions of one optimizer step, all sampled with the same weights
    / num_generations          prompts of one optimizer step

So the default, 64 and 8, is eight prompts with eight completions each; `--batch-size 8
--num-generations 8` alone is a single prompt a step. An optimizer step counts once for each of the
`num_iterations` passes over the same completions.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from flatline.errors import ConfigError, ModelError
from flatline.files import toml_from

LAB = "lab"

TaskName = Literal["musique", "gsm8k", "toolmath"]
EngineName = Literal["embedded", "vllm-server", "vllm-colocate"]
SamplerWeights = Literal["auto", "copy", "live"]
Passes = Literal["shuffled", "by-length"]
Scaling = Literal["group", "batch", "none"]
LossType = Literal["grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
Schedule = Literal[
    "constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"
]
Order = Literal["shuffled", "hops", "file"]

LAB_RATES = {"lora": 3e-3, "full": 6e-4}
"""Learning rates at which the lab policy learns in 30 steps on every seed tried."""
USUAL_RATES = {"lora": 1e-5, "full": 1e-6}
"""Learning rates for any other model: the largest and the smallest that the field starts from."""
LAB_TURN, USUAL_TURN = 96, 256
"""Tokens of a turn. The lab policy's longest is 63; one that rambles on would be padded for all."""
LAB_STEPS = 30
"""Optimizer steps on the built-in problems: enough to see a healthy run climb."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One training run."""

    task: TaskName = "musique"
    """What is played."""
    model: str = LAB
    """`lab` (embedded), a folder with safetensors, or a hub name."""
    chat_template: str | None = None
    """`hermes`, a file, or a template that TRL ships; by default the tokenizer's own."""
    datasets: str = LAB
    """Training problems as `path,config,split[slice]`, several joined with `;`."""
    eval_datasets: str | None = None
    """Held-out problems, written the same way; by default `validation` of `datasets`."""
    noise: float | None = None
    """MuSiQue: share of the non-supporting paragraphs kept; by default all."""
    retriever: str | None = None
    """MuSiQue: bm25, semantic, hybrid or golden; by default the task's own choice."""
    order: Order = "shuffled"
    """`shuffled` by seed; `file`: in file order; `hops` (MuSiQue) from few hops to many."""
    max_prompt_length: int | None = None
    """Tokens that a turn may see before it writes; see docs/design/max-prompt-length.md."""
    max_new_tokens: int | None = None
    """Tokens of one turn, including its end; by default 256, for the lab policy 96."""
    max_turns: int = 8
    """Turns of the model in one episode."""
    temperature: float = 1.0
    """Divides the logits, in the sampler and in the trainer alike."""
    top_p: float = 1.0
    """Sampler: keep the likeliest tokens up to this probability; 1 keeps all."""
    top_k: int = 0
    """Sampler: keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Sampler: drop tokens below this share of the likeliest one; 0 keeps all."""
    num_epochs: float | None = None
    """Passes over the training problems; 1 if neither this nor `max_steps` is given."""
    max_steps: int | None = None
    """Optimizer steps; overrides `num_epochs`. If neither is given, the lab trains for 30."""
    batch_size: int = 64
    """Completions of one device and one backward pass."""
    num_generations: int = 8
    """Completions of one prompt: the group that rewards are compared in."""
    gradient_accumulation_steps: int = 1
    """Backward passes of one optimizer step."""
    passes: Passes = "shuffled"
    """Which completions share a backward pass: dealt out at random and all padded to the step's
    longest, or of similar length, padded to the longest of the pass, which is faster."""
    bf16: bool = False
    """Mixed precision; the weights that are trained stay in fp32."""
    reward: str = "combined"
    """What is trained on: the task's combined reward, or one part of it alone by its name."""
    kl_beta: float = 0.0
    """Weight of the KL divergence to the starting policy."""
    scale_rewards: Scaling = "group"
    """Advantages are divided by the std of their group, of the batch, or by nothing."""
    loss_type: LossType = "grpo"
    """How token losses are averaged."""
    num_iterations: int = 1
    """Optimizer steps on the same completions."""
    epsilon: float = 0.2
    """The ratio is clipped to 1 - epsilon and 1 + epsilon."""
    peft: bool = True
    """Train LoRA adapters on all linear layers; otherwise every weight."""
    lora_r: int = 8
    """Rank of the adapters."""
    lora_alpha: int = 16
    """Adapters are scaled by alpha / r."""
    lora_dropout: float = 0.0
    """Dropout in front of the adapters, in the backward pass only."""
    lora_targets: str = "all-linear"
    """Modules that get an adapter: `all-linear`, or names joined with commas."""
    learning_rate: float | None = None
    """By default: lab 3e-3 with LoRA and 6e-4 without, any other model 1e-5 and 1e-6."""
    lr_scheduler_type: Schedule = "constant"
    """How the learning rate changes over the run."""
    warmup_steps: int = 0
    """Optimizer steps until the full learning rate."""
    weight_decay: float = 0.0
    """AdamW's pull towards zero."""
    adam_beta1: float = 0.9
    """Decay of the mean gradient."""
    adam_beta2: float = 0.95
    """Decay of the mean squared gradient; short runs want less than the usual 0.999."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are shortened."""
    gradient_checkpointing: bool = False
    """Saves memory, costs time."""
    logging_steps: int = 1
    """Optimizer steps from one log line to the next."""
    log_completions: bool = False
    """Write every logged batch, with whole trajectories, to `completions/`."""
    save_steps: int = 0
    """Optimizer steps from one checkpoint to the next; 0 saves at the end only."""
    eval_steps: int = 0
    """Optimizer steps from one held-out evaluation to the next; 0: at start and end only."""
    eval_limit: int = 256
    """Held-out problems to evaluate; 0 skips held-out evaluation."""
    eval_samples: int = 1
    """Rollouts of each held-out problem."""
    output_dir: str = "outputs"
    """Folder of the run."""
    run_name: str | None = None
    """Name in W&B and similar; by default the folder's name."""
    report_to: str = "none"
    """`wandb`, `tensorboard`, `trackio` (several joined with commas) or `none`."""
    resume_from_checkpoint: str | None = None
    """A checkpoint folder, or `last` for the newest one of `output_dir`."""
    seed: int = 0
    """Of adapters, order and sampling; the held-out evaluation does not depend on it."""
    engine: EngineName = "embedded"
    """What samples."""
    sampler_weights: SamplerWeights = "auto"
    """Embedded engine: the trainer's own weights (`live`), or a copy that each step delivers to,
    with LoRA merged, which samples faster (`copy`). `auto`: a copy of LoRA in fp32 up to 1e9."""
    vllm_url: str = "http://localhost:8000"
    """Where `vllm-server` listens."""
    vllm_memory: float = 0.3
    """Share of the GPU that `vllm-colocate` takes."""
    max_batch: int = 256
    """Episodes that the embedded engine runs at once."""
    fault: str | None = None
    """A defect planted on purpose: `name` or `name:strength`, several joined with `+`."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _refuse_wrong_type(name, value)
        _refuse_out_of_range(self)
        _refuse_what_does_not_fit_together(self)

    @property
    def rate(self) -> float:
        """The learning rate, chosen for the model where none was given."""
        if self.learning_rate is not None:
            return self.learning_rate
        rates = LAB_RATES if self.model == LAB else USUAL_RATES
        return rates["lora" if self.peft else "full"]

    @property
    def turn_tokens(self) -> int:
        """Tokens of one turn, chosen for the model where no number was given."""
        return self.max_new_tokens or (LAB_TURN if self.model == LAB else USUAL_TURN)

    @property
    def length(self) -> tuple[int | None, float]:
        """Optimizer steps, if they are what ends the run, and epochs."""
        steps = self.max_steps
        if steps is None and self.num_epochs is None and self.datasets == LAB:
            steps = LAB_STEPS
        return steps, 1.0 if self.num_epochs is None else self.num_epochs

    @property
    def eval_seed(self) -> int:
        """Common random numbers: the same for every run, step and arm."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "the config") -> Self:
        """A config from plain values; a name that does not exist is an error."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in values if name not in known]
        if unknown:
            near = [name for name in known if name[:4] == unknown[0][:4]]
            raise ConfigError(
                f"{source} sets {', '.join(map(repr, unknown))}, which no run has.\n"
                "It would be ignored, and the run would not be the one that was meant.\n"
                f"Did you mean one of: {', '.join(near or known)}?"
            )
        return cls(**values)


def refuse_missing_model(name: str) -> None:
    """A path that does not exist would be looked up on the hub and give a puzzling message."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        raise ModelError(
            f"There is no folder {name!r} to load a model from.\n"
            "Give a folder with config.json, tokenizer and safetensors, a hub name, or `lab`."
        )


def load_config(path: Path, **changes: Any) -> RunConfig:
    """The config of a TOML file, with `changes` over it."""
    try:
        values = toml_from(path.read_bytes())  # may be a pipe: whoever types it wants it
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read: {error.strerror}.\nGive the path of a TOML file."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}.\n"
            'Write one `name = value` a line, e.g. `task = "musique"`.'
        ) from error
    return RunConfig.from_dict({**values, **changes}, source=str(path))


def toml_of(values: Mapping[str, Any]) -> str:
    """Settings as `load_config` reads them, one a line; what is None has no line."""
    # A JSON string is a TOML string, but for the one control character that JSON leaves alone.
    lines = (
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in values.items()
        if value is not None
    )
    return "".join(lines).replace("\x7f", "\\u007f")


def prompts_per_step(config: RunConfig, processes: int = 1) -> int:
    """Problems that one optimizer step learns from."""
    completions = config.batch_size * config.gradient_accumulation_steps * processes
    if completions % config.num_generations:
        whole = math.lcm(config.batch_size * processes, config.num_generations)
        steps = whole // (config.batch_size * processes)
        raise ConfigError(
            f"A step has {completions} completions (--batch-size {config.batch_size} x "
            f"--gradient-accumulation-steps {config.gradient_accumulation_steps} x {processes} "
            f"processes), which are no whole groups of --num-generations "
            f"{config.num_generations}.\nRewards are compared inside a group, so it must be whole."
            f"\nType `--gradient-accumulation-steps {steps}`, or a --batch-size that "
            f"{config.num_generations} divides."
        )
    return completions // config.num_generations


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(RunConfig)


def _refuse_wrong_type(name: str, value: Any) -> None:
    expected = _hints()[name]
    options = get_args(expected) if get_origin(expected) is UnionType else (expected,)
    if any(_fits(value, option) for option in options):
        return
    named = [option for option in options if get_origin(option) is Literal]
    choices = [word for option in named for word in get_args(option)]
    wanted = ", ".join(choices) or " or ".join(_plain(option) for option in options)
    raise ConfigError(f"{flag(name)} {value!r} cannot be used.\nIt takes: {wanted}.")


def _fits(value: Any, option: Any) -> bool:
    if get_origin(option) is Literal:
        return value in get_args(option)
    if option is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, option)


def _plain(option: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(option, "nothing")


def flag(name: str) -> str:
    """`max_steps` -> `--max-steps`."""
    return "--" + name.replace("_", "-")


_AT_LEAST: Mapping[str, float] = {
    "max_new_tokens": 1,
    "max_turns": 1,
    "max_steps": 1,
    "max_prompt_length": 1,
    "batch_size": 1,
    "num_generations": 2,
    "gradient_accumulation_steps": 1,
    "num_iterations": 1,
    "lora_r": 1,
    "lora_alpha": 1,
    "logging_steps": 1,
    "max_batch": 1,
    "eval_samples": 1,
    "kl_beta": 0,
    "epsilon": 0,
    "learning_rate": 0,
    "warmup_steps": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "save_steps": 0,
    "eval_steps": 0,
    "eval_limit": 0,
    "top_k": 0,
    "seed": 0,
}
_AT_MOST: Mapping[str, float] = {"top_p": 1, "seed": 2**32 - 1}
"""numpy takes no larger seed."""
_SHARES = ("noise", "min_p", "vllm_memory")
_BELOW_ONE = ("lora_dropout", "adam_beta1", "adam_beta2")
"""Of these 1 would leave nothing: no input for the adapters, no weight for a new gradient."""


def _refuse_out_of_range(config: RunConfig) -> None:
    for name, least in _AT_LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{flag(name)} {value} must be at least {least}.")
    for name, most in _AT_MOST.items():
        if getattr(config, name) > most:
            raise ConfigError(f"{flag(name)} {getattr(config, name)} must be at most {most}.")
    for name in _SHARES:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{flag(name)} {value} must be between 0 and 1.")
    for name in _BELOW_ONE:
        if not 0 <= getattr(config, name) < 1:
            raise ConfigError(
                f"{flag(name)} {getattr(config, name)} must be at least 0 and below 1."
            )
    above_zero = {name: getattr(config, name) for name in ("temperature", "top_p", "vllm_memory")}
    for name, value in {**above_zero, "num_epochs": config.length[1]}.items():
        if value <= 0:
            raise ConfigError(
                f"{flag(name)} {value} must be above 0."
                + (" Without randomness a group has one answer." if name == "temperature" else "")
            )
    if not config.output_dir:
        raise ConfigError("--output-dir is empty.\nGive the folder of the run: `outputs`.")


def _refuse_what_does_not_fit_together(config: RunConfig) -> None:
    if config.task != "musique":
        for name in ("noise", "retriever"):
            if getattr(config, name) is not None:
                raise ConfigError(f"{config.task} has no {flag(name)}; only musique has documents.")
        if config.order == "hops":
            raise ConfigError(
                f"{config.task} cannot be ordered by hops.\n"
                "Type `--order shuffled` or `--order file`."
            )
    if config.engine != "embedded" and config.max_prompt_length is not None:
        raise ConfigError(
            f"--max-prompt-length cannot be kept with --engine {config.engine}: TRL runs the tools "
            "and shows the model all they find.\n"
            "Leave it out and start the server with `--max-model-len`, or use `--engine embedded`."
        )
    if config.warmup_steps and config.lr_scheduler_type == "constant":
        raise ConfigError(
            f"--warmup-steps {config.warmup_steps} does nothing with --lr-scheduler-type constant."
            "\nType `--lr-scheduler-type constant_with_warmup`."
        )
    if config.passes == "by-length" and config.loss_type == "bnpo":
        raise ConfigError(
            "--loss-type bnpo averages over the tokens of a pass: with --passes by-length those of "
            "short completions would weigh more.\n"
            "Type `--passes shuffled`, or `--loss-type dapo`, which averages over the step."
        )
    if config.save_steps % config.num_iterations:
        raise ConfigError(
            f"--save-steps {config.save_steps} would save in the middle of the "
            f"{config.num_iterations} passes over one batch (--num-iterations).\n"
            "A run resumed from there would not sample the batch that it left.\n"
            f"Type a multiple of {config.num_iterations}."
        )
