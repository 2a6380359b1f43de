"""Sampling with vLLM: through TRL's own server and colocate modes, with the task as environment.

What flatline adds is a look at the server before anything is loaded: a server that is down, or that
serves another model, is an error within seconds instead of a wait of minutes or a run that trains
one model on the text of another.
"""

import json
from importlib.util import find_spec
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from flatline.config import RunConfig
from flatline.errors import ConfigError

SECONDS = 5.0
"""How long the server may take to answer."""

SERVE = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve {model} --port 8000 --logprobs-mode processed_logprobs "
    """--weight-transfer-config '{{"backend": "nccl"}}'"""
)


def vllm_arguments(config: RunConfig) -> dict[str, Any]:
    """TRL's arguments for the engine of the config."""
    if config.engine == "embedded":
        return {"use_vllm": False}
    arguments: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": config.engine.removeprefix("vllm-"),
        # TRL has one limit for a whole episode; this one is for a turn.
        "generation_kwargs": {"max_tokens": config.turn_tokens},
        "max_tool_calling_iterations": config.max_turns - 1,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "vllm_importance_sampling_clip_min": None,
    }
    if config.engine == "vllm-server":
        return arguments | {"vllm_server_base_url": config.vllm_url}
    return arguments | {"vllm_gpu_memory_utilization": config.vllm_memory}


def check_vllm(config: RunConfig) -> None:
    """Refuse what cannot work before a model is loaded."""
    if config.engine == "embedded":
        return
    if config.engine == "vllm-server":
        check_server(config.vllm_url, config.model)
    if find_spec("vllm") is None:
        raise ConfigError(
            f"--engine {config.engine} needs vllm, which is not installed.\n"
            "Type `pip install 'trl[vllm]'`, or use `--engine embedded`."
        )


def check_server(url: str, model: str) -> None:
    """A vLLM server answers at `url` and serves `model`."""
    try:
        with urlopen(f"{url.rstrip('/')}/v1/models", timeout=SECONDS) as response:
            served = [str(entry["id"]) for entry in json.load(response)["data"]]
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"No vLLM server answers at --vllm-url {url}: {reason}.\n"
            f"Start one on its own GPU:\n  {SERVE.format(model=model)}"
        ) from error
    if model not in served:
        raise ConfigError(
            f"The vLLM server at {url} serves {', '.join(served) or 'nothing'}, and --model is "
            f"{model}.\nIts completions would not come from the model that is trained."
            f"\nStart it with the same name:\n  {SERVE.format(model=model)}"
        )
