"""A batch between the layouts: TRL's names, padded, and the TensorDict of verl's engines."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatline.live.inputs import Inputs


def fields_of(output: Any, uid: str) -> dict[str, Any]:
    """An `AgentLoopOutput` as the fields that the trainer's queue would hold of it."""
    ids = list(output.response_ids)
    scores = np.zeros(len(ids))
    scores[-1:] = float(output.reward_score)
    fields = {
        "uid": uid,
        "prompts": list(output.prompt_ids),
        "responses": ids,
        "response_mask": list(output.response_mask),
        "rm_scores": scores,
        "extra_fields": dict(output.extra_fields),
    }
    if output.response_logprobs is not None:
        fields["rollout_log_probs"] = list(output.response_logprobs)
    return fields


def advantages(inputs: Inputs, fields: Sequence[Mapping[str, Any]], config: Any) -> Tensor:
    """By verl's own estimator; one for each rollout."""
    mask_BT = inputs["tool_mask"] * inputs["completion_mask"]
    scores_BT = torch.zeros(mask_BT.shape)
    for at, row in enumerate(fields):
        scores_BT[at, : len(row["rm_scores"])] = torch.tensor(row["rm_scores"]).float()
    data = import_module("verl").DataProto.from_single_dict(
        {
            "token_level_rewards": scores_BT,
            "response_mask": mask_BT,
            "uid": np.array([row["uid"] for row in fields], dtype=object),
        }
    )
    algorithm = config["algorithm"]
    estimate = import_module("verl.trainer.ppo.ray_trainer").compute_advantage
    found = estimate(
        data,
        adv_estimator=algorithm["adv_estimator"],
        norm_adv_by_std_in_grpo=algorithm.get("norm_adv_by_std_in_grpo", True),
    ).batch["advantages"]
    advantages_B: Tensor = (found * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)
    return advantages_B


def tensordict(
    inputs: Inputs, config: Mapping[str, Any], old: Tensor | None = None, **more: Any
) -> Any:
    """What an engine is given, row by row without padding, as the trainer's queue holds it; with
    old log-probs, as an update is."""
    made = import_module("verl.utils.tensordict_utils")
    rows = [_row(inputs, at, old) for at in range(len(inputs["completion_ids"]))]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    nested = {
        name: values
        if name == "uid"
        else torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in columns.items()
    }
    data = made.get_tensordict(tensor_dict=nested)
    made.assign_non_tensor(
        data,
        temperature=config["temperature"],
        global_batch_size=len(rows),
        global_token_num=[len(row["input_ids"]) for row in rows],
        use_remove_padding=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=math.gcd(config["size"], len(rows)),
        **more,
    )
    return data


def _row(inputs: Inputs, at: int, old: Tensor | None) -> dict[str, Any]:
    prompt = inputs["prompt_ids"][at][inputs["prompt_mask"][at].bool()]
    kept = inputs["completion_mask"][at].bool()
    completion = inputs["completion_ids"][at][kept]
    both = torch.cat([prompt, completion])
    row = {
        "uid": str(int(inputs["group"][at])),
        "prompts": prompt,
        "responses": completion,
        "input_ids": both,
        "position_ids": torch.arange(len(both)),
        "response_mask": inputs["tool_mask"][at][kept],
        "loss_mask": inputs["tool_mask"][at][kept],
    }
    if old is not None:
        advantage = float(inputs["advantages"][at])
        row |= {
            "old_log_probs": old[at][kept],
            "advantages": torch.full(kept.shape, advantage)[kept],
        }
        if "ref_per_token_logps" in inputs:
            row["ref_log_prob"] = inputs["ref_per_token_logps"][at][kept]
    return row


def has_beta(loss_fn: Any) -> bool:
    """Whether it is verl's `ppo_loss` with a configuration, which has the weight of the KL."""
    config = getattr(loss_fn, "keywords", {}).get("config")
    return hasattr(config, "kl_loss_coef")


def with_beta(loss_fn: Any, beta: float) -> Any:
    """The same loss with another weight of the KL."""
    config = copy.deepcopy(loss_fn.keywords["config"])
    object.__setattr__(config, "kl_loss_coef", beta)  # verl's configurations are frozen
    return partial(loss_fn.func, **{**loss_fn.keywords, "config": config})
