"""A batch between the layouts: TRL's names, padded, and the TensorDict of verl's engines."""

import math
from collections.abc import Mapping, Sequence
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
    return (found * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1)


def tensordict(
    inputs: Inputs, config: Mapping[str, Any], old: Tensor | None = None, **more: Any
) -> Any:
    """What an engine is given; with old log-probs, as an update is."""
    prompts, responses = inputs["prompt_ids"], inputs["completion_ids"]
    seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    rows = len(responses)
    given: dict[str, Any] = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": seen,
        "position_ids": (seen.cumsum(1) - 1).clamp(min=0),
        "response_mask": inputs["tool_mask"] * inputs["completion_mask"],
        "uid": np.array([str(at) for at in inputs["group"].tolist()], dtype=object),
    }
    if old is not None:
        given |= {"old_log_probs": old, "advantages": _wide(inputs["advantages"], responses)}
        if "ref_per_token_logps" in inputs:
            given["ref_log_prob"] = inputs["ref_per_token_logps"]
    data = import_module("verl").DataProto.from_single_dict(given).to_tensordict()
    data = import_module("verl.workers.utils.padding").left_right_2_no_padding(data)
    import_module("verl.utils.tensordict_utils").assign_non_tensor(
        data,
        temperature=config["temperature"],
        global_batch_size=rows,
        global_token_num=seen.sum(1).tolist(),
        use_remove_padding=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=math.gcd(config["size"], rows),
        **more,
    )
    return data


def completions(values: Any, data: Any) -> Tensor:
    """Of every completion token, padded."""
    cut = import_module("verl.workers.utils.padding").no_padding_2_padding
    found: Tensor = cut(values.detach().cpu(), data).float()
    return found


def _wide(values_B: Tensor, like_BT: Tensor) -> Tensor:
    return values_B.float()[:, None].expand(like_BT.shape).contiguous()
