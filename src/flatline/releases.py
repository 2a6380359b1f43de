"""Releases of RL libraries with a known silent defect, and the release that mended each.

One table: `flatline doctor` reads it, and every exhibit of the museum (docs/museum.md) shows one
entry of it, under the same name.
"""

from dataclasses import dataclass

TRL = "https://github.com/huggingface/trl/pull/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One defect of one library."""

    library: str
    """As pip knows it."""
    since: str
    """First release that is known to have it."""
    mended: str
    """First release that is known not to."""
    what: str
    """What goes wrong, for somebody who decides whether it concerns them."""
    when: str = ""
    """Settings that it needs; empty where every run has it."""
    reference: str
    """Where it was reported or mended."""


DEFECTS: dict[str, Defect] = {
    "trl_scale_rewards": Defect(
        library="trl",
        since="0.22.0",
        mended="0.22.2",
        what="advantages are scaled where `scale_rewards` says not to, and not where it says to",
        reference=TRL + "3992",
    ),
    "trl_logged_reward": Defect(
        library="trl",
        since="0.27.0",
        mended="1.0.0",
        what="the logged reward ignores `reward_weights`",
        when="several reward functions with weights",
        reference=TRL + "5353",
    ),
    "trl_masked_denominator": Defect(
        library="trl",
        since="0.22.0",
        mended="1.9.0",
        what="tokens that carry no loss are counted in its denominator",
        when="`mask_truncated_completions` with a loss that divides by all tokens (dapo)",
        reference=TRL + "6439",
    ),
    "trl_generation_denominator": Defect(
        library="trl",
        since="0.22.0",
        mended="1.9.2",
        what="a step is divided by the tokens of the whole generation",
        when="`steps_per_generation` other than `gradient_accumulation_steps` (dapo, cispo)",
        reference=TRL + "6024",
    ),
    "trl_one_end_of_sequence": Defect(
        library="trl",
        since="0.14.0",
        mended="1.15.0",
        what="only the tokenizer's end of sequence ends a completion",
        when="a model with several in its `generation_config`",
        reference=TRL + "7039",
    ),
    "trl_temperature": Defect(
        library="trl",
        since="0.14.0",
        mended="0.16.0",
        what="log-probs are taken at temperature 1, whatever was sampled at",
        when="`temperature` other than 1; the default is 0.9",
        reference=TRL + "3029",
    ),
    "trl_attention_mask": Defect(
        library="trl",
        since="0.14.0",
        mended="0.15.0",
        what="the policy attends to the padding of its prompts",
        when="prompts of different lengths in a batch",
        reference=TRL + "2708",
    ),
    "trl_merged_after": Defect(
        library="trl",
        since="0.15.0",
        mended="0.15.1",
        what="vLLM is sent the base weights without the adapter, at every step",
        when="`use_vllm` with a PEFT adapter",
        reference=TRL + "2873",
    ),
    "trl_prefix_cache": Defect(
        library="trl",
        since="0.15.0",
        mended="0.16.0",
        what="vLLM's cache of prompts is not emptied when weights change",
        when="`use_vllm`",
        reference=TRL + "2900",
    ),
}
"""By the name of the exhibit."""
