"""Releases of RL libraries with a known silent defect, and the release that fixed each.

One table: `flatline doctor` reads it, and every exhibit of the museum (docs/museum.md) shows one
entry of it, under the same name.
"""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

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
    """Where it was reported or fixed."""


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
        mended="1.14.2",
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
    "trl_processed_logprobs": Defect(
        library="trl",
        since="0.23.0",
        mended="0.24.0",
        what="vLLM's log-probs are taken from before the temperature",
        when="`use_vllm` with its importance-sampling correction, `temperature` other than 1",
        reference=TRL + "4163",
    ),
    "trl_retokenised_tools": Defect(
        library="trl",
        since="0.26.0",
        mended="0.29.1",
        what="what the model wrote before a tool's answer is tokenised again",
        when="`tools`",
        reference=TRL + "5242",
    ),
    "openrlhf_temperature": Defect(
        library="openrlhf",
        since="0.5.0",
        mended="0.6.2",
        what="the actor's log-probs are taken at temperature 1, whatever was sampled at",
        when="`--temperature` other than 1",
        reference="https://github.com/OpenRLHF/OpenRLHF/pull/857",
    ),
    "trl_vllm_untruncated": Defect(
        library="trl",
        since="0.14.0",
        mended="0.19.0",
        what="vLLM gets prompts whole that the trainer cuts",
        when="`use_vllm` with prompts longer than `max_prompt_length`",
        reference=TRL + "3601",
    ),
    "trl_vllm_special_tokens": Defect(
        library="trl",
        since="0.19.0",
        mended="0.19.1",
        what="vLLM gets prompts without their special tokens",
        when="`use_vllm` with `max_prompt_length`",
        reference=TRL + "3651",
    ),
    "trl_old_logprobs_missing": Defect(
        library="trl",
        since="0.18.0",
        mended="0.20.0",
        what="rows are trained after an update without the log-probs from before it",
        when="`gradient_accumulation_steps` that is no multiple of `steps_per_generation`",
        reference=TRL + "3725",
    ),
    "trl_rloo_logged_reward": Defect(
        library="trl",
        since="0.27.0",
        mended="1.0.0",
        what="the logged reward of RLOO ignores `reward_weights`",
        when="RLOO, several reward functions with weights",
        reference=TRL + "5353",
    ),
    "trl_rloo_one_end_of_sequence": Defect(
        library="trl",
        since="0.22.0",
        mended="1.14.2",
        what="only the tokenizer's end of sequence ends a completion of RLOO",
        when="RLOO, a model with several in its `generation_config`",
        reference=TRL + "7039",
    ),
    "trl_none_rewards": Defect(
        library="trl",
        since="0.17.0",
        mended="1.6.0",
        what="a completion without any reward is trained as one that earned 0",
        when="GRPO, reward functions that all return None for a completion",
        reference=TRL + "5902",
    ),
    "trl_rloo_none_rewards": Defect(
        library="trl",
        since="0.22.0",
        mended="1.6.0",
        what="a completion without any reward is trained as one that earned 0",
        when="RLOO, reward functions that all return None for a completion",
        reference=TRL + "5902",
    ),
    "trl_right_padding": Defect(
        library="trl",
        since="0.25.0",
        mended="0.29.1",
        what="chats are padded on the tokenizer's side, and the model goes on behind the padding",
        when="conversational prompts, sampling with transformers, a tokenizer that pads right",
        reference=TRL + "5239",
    ),
    "trl_generation_config": Defect(
        library="trl",
        since="0.14.0",
        mended="0.26.2",
        what="sampling takes what the arguments leave at its default from the model's own file",
        when="a penalty or the like in the model's `generation_config`, sampling with transformers",
        reference=TRL + "4647",
    ),
    "verifiers_attention_mask": Defect(
        library="verifiers",
        since="0.1.2",
        mended="0.1.7",
        what="the loss mask is the attention mask: the policy is trained without its prompt",
        when="training with its own `GRPOTrainer`",
        reference="https://github.com/PrimeIntellect-ai/verifiers/pull/505",
    ),
    "trl_luspo_padding": Defect(
        library="trl",
        since="0.28.0",
        mended="1.10.0",
        what="the loss counts padding, and weighs a row by the square of its length",
        when='`loss_type="luspo"` with `importance_sampling_level="token"`, the default',
        reference=TRL + "6654",
    ),
    "trl_adapter_frozen_again": Defect(
        library="trl",
        since="0.22.0",
        mended="0.23.1",
        what="the adapter is frozen, and nothing is trained",
        when="a quantised model that is given with its adapter on, gradient checkpointing",
        reference=TRL + "4081",
    ),
    "trl_evaluated_as_trained": Defect(
        library="trl",
        since="0.17.0",
        mended="0.18.0",
        what="completions of an evaluation are trained on, and generations are cut across steps",
        when="`eval_on_start`, or `evaluate()` before training",
        reference=TRL + "3337",
    ),
    "trl_dora_magnitude": Defect(
        library="trl",
        since="0.26.2",
        mended="1.15.0",
        what="DoRA's magnitudes are cast to bf16 and never change",
        when="DoRA on a quantised model",
        reference=TRL + "7273",
    ),
    "trl_tools_mixed_up": Defect(
        library="trl",
        since="0.26.0",
        mended="1.14.1",
        what="what follows a tool's answer is drawn for another rollout",
        when='`tools` with `vllm_mode="server"`',
        reference=TRL + "6673",
    ),
    "peft_merged_bias": Defect(
        library="peft",
        since="0.14.0",
        mended="0.16.0",
        what="the bias of an adapter is merged without its scale",
        when="`lora_bias=True` with `lora_alpha` other than `r`, where merged weights are sampled",
        reference="https://github.com/huggingface/peft/pull/2489",
    ),
    "transformers_last_accumulation": Defect(
        library="transformers",
        since="4.51.3",
        mended="4.55.0",
        what="the last step of an epoch is divided by passes that it does not have",
        when="passes of an epoch that `gradient_accumulation_steps` does not divide",
        reference="https://github.com/huggingface/transformers/pull/39659",
    ),
    "trl_rloo_steps_twice": Defect(
        library="trl",
        since="0.26.0",
        mended="0.27.0",
        what="every pass is counted twice, and half of what is sampled is never trained on",
        when="RLOO with `steps_per_generation` above 1",
        reference=TRL + "4706",
    ),
    "trl_rloo_dora_magnitude": Defect(
        library="trl",
        since="0.27.0",
        mended="1.15.0",
        what="DoRA's magnitudes are cast to bf16 and never change",
        when="RLOO, DoRA on a quantised model",
        reference=TRL + "7273",
    ),
    "trl_reference_of_another_precision": Defect(
        library="trl",
        since="0.26.0",
        mended="1.16.0",
        what="the reference is loaded in float32, whatever the precision of the policy",
        when="`beta` above 0 and a policy in bf16 that is given as an object, without an adapter",
        reference="https://github.com/huggingface/trl/compare/v1.15.0...v1.16.0",
    ),
    "trl_gspo_token_denominator": Defect(
        library="trl",
        since="0.24.0",
        mended="1.9.2",
        what="a step is divided by the tokens of the whole generation",
        when="`trl.experimental.gspo_token` with dapo, `steps_per_generation` other than "
        "`gradient_accumulation_steps`",
        reference="https://github.com/huggingface/trl/compare/v1.9.0...v1.9.2",
    ),
    "trl_clip_ratio_of_the_unclipped": Defect(
        library="trl",
        since="0.16.0",
        mended="0.17.0",
        what="the logged `clip_ratio` counts tokens that the clip does not touch",
        reference=TRL + "3175",
    ),
    "trl_tool_calls_unlimited": Defect(
        library="trl",
        since="0.27.0",
        mended="1.9.0",
        what="a limit of 0 tool calls is taken for no limit",
        when="`tools` with `max_tool_calling_iterations=0`",
        reference=TRL + "6423",
    ),
    "trl_sleep_reloads_start": Defect(
        library="trl",
        since="0.29.0",
        mended="1.10.0",
        what="vLLM loads its checkpoint again after it was sent the trained weights",
        when='`vllm_enable_sleep_mode` with `vllm_mode="colocate"`',
        reference="https://github.com/huggingface/trl/issues/5312",
    ),
    "peft_scaled_embedding": Defect(
        library="peft",
        since="0.17.1",
        mended="0.18.0",
        what="an adapter on an embedding is scaled when merged, and not when it is trained",
        when="LoRA on an embedding that scales its output (Gemma 3), where merged weights are "
        "sampled",
        reference="https://github.com/huggingface/peft/pull/2825",
    ),
    "trl_reference_without_adapter": Defect(
        library="trl",
        since="0.15.0",
        mended="0.27.0",
        what="the reference is the model without its adapter, and not the policy that was given",
        when="`beta` above 0 and a policy that is given with a trained adapter on",
        reference=TRL + "4723",
    ),
    "trl_empty_tools": Defect(
        library="trl",
        since="0.26.0",
        mended="1.0.0",
        what="prompts hold the template's words on tools although there are none",
        when="chat templates that ask whether `tools` is none (Llama 3), no `tools`",
        reference=TRL + "5380",
    ),
    "trl_gfpo_others_logprobs": Defect(
        library="trl",
        since="0.24.0",
        mended="0.25.0",
        what="log-probs of before the updates, and of the reference, are those of other rows",
        when="`trl.experimental.gfpo` with `num_remains_in_group`, and several updates to a "
        "generation or `beta` above 0",
        reference=TRL + "4454",
    ),
    "trl_rloo_template_arguments": Defect(
        library="trl",
        since="0.25.0",
        mended="0.27.0",
        what="`chat_template_kwargs` are not handed to vLLM, which renders the prompts",
        when='RLOO, `use_vllm` with `vllm_mode="colocate"`',
        reference=TRL + "4706",
    ),
    "trl_entropy_bonus_diluted": Defect(
        library="trl",
        since="1.8.0",
        mended="1.10.0",
        what="the bonus on entropy is divided by all tokens, also where it is on few",
        when="`entropy_coef` with `top_entropy_quantile` below 1 (dapo, cispo, vespo)",
        reference=TRL + "6648",
    ),
    "peft_merge_replaces_embedding": Defect(
        library="peft",
        since="0.14.0",
        mended="0.20.0",
        what="an adapter on an embedding is replaced when it is merged, and trained no more",
        when="LoRA on an embedding in half precision on a CPU, where merged weights are sampled",
        reference="https://github.com/huggingface/peft/pull/3396",
    ),
    "transformers_accumulated_twice": Defect(
        library="transformers",
        since="5.2.0",
        mended="5.5.4",
        what="every loss is divided twice by the passes of a step",
        when="`gradient_accumulation_steps` above 1",
        reference="https://github.com/huggingface/transformers/pull/45349",
    ),
    "transformers_reward_at_first_padding": Defect(
        library="transformers",
        since="4.48.3",
        mended="4.49.0",
        what="a reward model is read before the first padding, which may be the end of a turn",
        when="a reward model whose tokenizer pads with the token that ends a turn",
        reference="https://github.com/huggingface/transformers/pull/35911",
    ),
    "trl_overlong_tool_result": Defect(
        library="trl",
        since="0.26.0",
        mended="1.2.0",
        what="tokens of a tool's answer are trained as the policy's own",
        when="`tools` with answers that no longer fit into the model's context",
        reference=TRL + "5521",
    ),
    "trl_plain_prompts_without_beginning": Defect(
        library="trl",
        since="0.14.0",
        mended="0.26.0",
        what="prompts lack the special tokens that the tokenizer begins a text with",
        when="GRPO, plain text as prompts, sampling with transformers",
        reference=TRL + "4300",
    ),
    "trl_prompts_cut_at_their_end": Defect(
        library="trl",
        since="0.24.0",
        mended="0.26.0",
        what="prompts are cut at their end: of the question, and the header of the answer",
        when="GRPO, prompts longer than `max_prompt_length` (512 unless given), sampling with "
        "transformers, a tokenizer of your own that cuts right",
        reference=TRL + "4300",
    ),
    "transformers_momentum_ignored": Defect(
        library="transformers",
        since="4.51.3",
        mended="5.3.0",
        what="`optim_args` are not handed to SGD, Adagrad and RMSprop",
        when='`optim="sgd"` and the like with `optim_args`',
        reference="https://github.com/huggingface/transformers/pull/44203",
    ),
    "trl_iterable_without_groups": Defect(
        library="trl",
        since="0.15.0",
        mended="0.17.0",
        what="groups hold answers to several questions",
        when="a dataset that is read as a stream (`IterableDataset`)",
        reference="https://github.com/huggingface/trl/issues/3213",
    ),
    "transformers_next_rate_logged": Defect(
        library="transformers",
        since="4.48.3",
        mended="4.51.0",
        what="the logged learning rate is that of the next step",
        when="a schedule other than a constant one",
        reference="https://github.com/huggingface/transformers/pull/36973",
    ),
    "peft_dora_unmerged": Defect(
        library="peft",
        since="0.14.0",
        mended="0.21.0",
        what="frozen weights change each time the adapter is merged and taken out again",
        when="DoRA on square layers of GPT-2 and others that keep weights turned (`Conv1D`), where "
        "merged weights are sampled",
        reference="https://github.com/huggingface/peft/pull/3532",
    ),
    "peft_frozen_by_another": Defect(
        library="peft",
        since="0.18.0",
        mended="0.21.0",
        what="an adapter that is added as frozen freezes the active one, and nothing is trained",
        when="a policy with a loaded adapter, and `beta` above 0, for which TRL adds another",
        reference="https://github.com/huggingface/peft/issues/3487",
    ),
    "trl_first_rollouts_of_another": Defect(
        library="trl",
        since="0.14.0",
        mended="0.17.0",
        what="vLLM is not sent the weights that the first rollouts are sampled with",
        when="`use_vllm` with a policy that is not the checkpoint which vLLM was started with",
        reference=TRL + "3185",
    ),
    "trl_liger_unscaled_logits": Defect(
        library="trl",
        since="1.13.0",
        mended="1.15.0",
        what="the loss takes undivided logits, and trains another policy than samples",
        when="`use_liger_kernel` with a model that divides its logits (Granite's `logits_scaling`)",
        reference="https://github.com/huggingface/trl/compare/v1.14.2...v1.15.0",
    ),
    "trl_gspo_token_tool_text": Defect(
        library="trl",
        since="0.26.0",
        mended="1.9.0",
        what="what tools answer is trained as the policy's own",
        when="`trl.experimental.gspo_token` with `tools`",
        reference="https://github.com/huggingface/trl/compare/v1.8.0...v1.9.0",
    ),
    "trl_rollouts_ignored": Defect(
        library="trl",
        since="0.25.0",
        mended="0.29.1",
        what="`rollout_func` is never called, and single answers are trained instead",
        when="`rollout_func` without `use_vllm`",
        reference=TRL + "5122",
    ),
    "trl_schedule_beyond_the_data": Defect(
        library="trl",
        since="0.16.0",
        mended="0.20.0",
        what="the learning rate's schedule is made for more steps than the data has",
        when="`num_train_epochs`, and prompts that a generation does not divide",
        reference="https://github.com/huggingface/trl/compare/v0.19.1...v0.20.0",
    ),
}
"""By the name of the exhibit."""


def installed(library: str) -> str | None:
    """Its version here; None where it is not."""
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def defects_of(library: str, release: str) -> dict[str, Defect]:
    """What is known of a release, by the name of the exhibit; the one fixed last comes last."""
    at = _numbers(release)
    known = {
        name: one
        for name, one in DEFECTS.items()
        if one.library == library and _numbers(one.since) <= at < _numbers(one.mended)
    }
    return dict(sorted(known.items(), key=lambda pair: _numbers(pair[1].mended)))


def note_on(trainer: object) -> str | None:
    """One line on the releases that a trainer is from; None where nothing is known of them."""
    origins = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    return " ".join(filter(None, map(_note, sorted(origins & libraries())))) or None


def libraries() -> set[str]:
    """Those of which something is known."""
    return {one.library for one in DEFECTS.values()}


def _note(library: str) -> str | None:
    release = installed(library)
    found = list(defects_of(library, release).values()) if release else []
    if not found:
        return None
    count = "a known defect" if len(found) == 1 else f"{len(found)} known defects"
    return (
        f"{library} {release} has {count}, fixed in {found[-1].mended} at the latest; "
        "`flatline doctor` says which."
    )


def _numbers(release: str) -> tuple[int, ...]:
    """For comparison: `1.9` is `1.9.0`, and what comes before a release counts as that release."""
    numbers = re.match(r"[\d.]*(?:\.?post\d+)?", release)
    found = [int(one) for one in re.findall(r"\d+", numbers.group() if numbers else "")]
    while found and not found[-1]:
        found.pop()
    return tuple(found)
