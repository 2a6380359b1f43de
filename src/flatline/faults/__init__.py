"""Defects that can be planted on purpose: `--fault NAME`, `NAME:STRENGTH`, several joined with `+`.

`plant(trainer, text)` puts them into any live TRL GRPOTrainer.
"""

import math
from typing import NamedTuple

from flatline.config import RunConfig
from flatline.errors import ConfigError
from flatline.faults.accumulation_undivided import AccumulationUndivided
from flatline.faults.adapter_frozen import AdapterFrozen
from flatline.faults.adapter_merged_twice import AdapterMergedTwice
from flatline.faults.advantage_noise import AdvantageNoise
from flatline.faults.assistant_tokens_masked import AssistantTokensMasked
from flatline.faults.base import Fault
from flatline.faults.calls_punished import CallsPunished
from flatline.faults.calls_unread import CallsUnread
from flatline.faults.clip_tight import ClipTight
from flatline.faults.context_cut import ContextCut
from flatline.faults.drafts_accepted import DraftsAccepted
from flatline.faults.dropout_in_scoring import DropoutInScoring
from flatline.faults.earlier_turns_stripped import EarlierTurnsStripped
from flatline.faults.end_token_untrained import EndTokenUntrained
from flatline.faults.entropy_penalised import EntropyPenalised
from flatline.faults.eval_is_train import EvalIsTrain
from flatline.faults.eval_other_path import EvalOtherPath
from flatline.faults.excess_paid import ExcessPaid
from flatline.faults.experts_rerouted import ExpertsRerouted
from flatline.faults.finished_left_out import FinishedLeftOut
from flatline.faults.first_token_doubled import FirstTokenDoubled
from flatline.faults.format_paid import FormatPaid
from flatline.faults.generation_prompt_missing import GenerationPromptMissing
from flatline.faults.gradient_clip_low import GradientClipLow
from flatline.faults.groups_mixed import GroupsMixed
from flatline.faults.hop_factor import HopFactor
from flatline.faults.judge_failing import JudgeFailing
from flatline.faults.kl_anchor import KlAnchor
from flatline.faults.kl_heavy import KlHeavy
from flatline.faults.kl_sign import KlSign
from flatline.faults.kl_wrong_reference import KlWrongReference
from flatline.faults.later_turns_lost import LaterTurnsLost
from flatline.faults.learning_rate_high import LearningRateHigh
from flatline.faults.learning_rate_low import LearningRateLow
from flatline.faults.length_weighted import LengthWeighted
from flatline.faults.log_smoothed import LogSmoothed
from flatline.faults.mask_as_attention import MaskAsAttention
from flatline.faults.mask_off_by_one import MaskOffByOne
from flatline.faults.merge_rounded import MergeRounded
from flatline.faults.only_tool_tokens_trained import OnlyToolTokensTrained
from flatline.faults.optimizer_not_stepping import OptimizerNotStepping
from flatline.faults.packed_unmasked import PackedUnmasked
from flatline.faults.padding_attended import PaddingAttended
from flatline.faults.parser_broken import ParserBroken
from flatline.faults.policy_noised import PolicyNoised
from flatline.faults.prefix_cache_stale import PrefixCacheStale
from flatline.faults.prompts_duplicated import PromptsDuplicated
from flatline.faults.reference_keeps_adapter import ReferenceKeepsAdapter
from flatline.faults.retokenised import Retokenised
from flatline.faults.reward_conflict import RewardConflict
from flatline.faults.reward_noise import RewardNoise
from flatline.faults.sampler_every_n import SamplerEveryN
from flatline.faults.sampler_never_updated import SamplerNeverUpdated
from flatline.faults.sampler_other_adapter import SamplerOtherAdapter
from flatline.faults.sampler_requantised import SamplerRequantised
from flatline.faults.sampler_rounded import SamplerRounded
from flatline.faults.sampler_temperature import SamplerTemperature
from flatline.faults.sampler_top_k import SamplerTopK
from flatline.faults.samples_duplicated import SamplesDuplicated
from flatline.faults.sequence_weights import SequenceWeights
from flatline.faults.shards_apart import ShardsApart
from flatline.faults.shortcut_paid import ShortcutPaid
from flatline.faults.slow_dropped import SlowDropped
from flatline.faults.sorted_with_hop_factor import SortedWithHopFactor
from flatline.faults.tool_failing import ToolFailing
from flatline.faults.tool_schema_missing import ToolSchemaMissing
from flatline.faults.tool_tokens_trained import ToolTokensTrained
from flatline.faults.turn_limit_low import TurnLimitLow
from flatline.faults.turns_too_few import TurnsTooFew
from flatline.faults.updates_rounded import UpdatesRounded
from flatline.faults.zero_variance import ZeroVariance
from flatline.live.trl.grpo import GrpoTrainer

FAULTS: tuple[Fault, ...] = (
    MaskAsAttention(),
    ToolTokensTrained(),
    OnlyToolTokensTrained(),
    AssistantTokensMasked(),
    MaskOffByOne(),
    EndTokenUntrained(),
    KlWrongReference(),
    KlSign(),
    KlHeavy(),
    ContextCut(),
    RewardNoise(),
    RewardConflict(),
    AdapterFrozen(),
    ReferenceKeepsAdapter(),
    SamplerNeverUpdated(),
    SamplerEveryN(),
    AdapterMergedTwice(),
    LaterTurnsLost(),
    EvalOtherPath(),
    GenerationPromptMissing(),
    ToolSchemaMissing(),
    Retokenised(),
    SamplerTemperature(),
    SamplerTopK(),
    DropoutInScoring(),
    LearningRateLow(),
    LearningRateHigh(),
    OptimizerNotStepping(),
    ZeroVariance(),
    GroupsMixed(),
    PromptsDuplicated(),
    ParserBroken(),
    SortedWithHopFactor(),
    AdvantageNoise(),
    EarlierTurnsStripped(),
    TurnLimitLow(),
    FinishedLeftOut(),
    PaddingAttended(),
    FirstTokenDoubled(),
    MergeRounded(),
    PrefixCacheStale(),
    SamplerRounded(),
    SequenceWeights(),
    UpdatesRounded(),
    GradientClipLow(),
    AccumulationUndivided(),
    ClipTight(),
    EntropyPenalised(),
    KlAnchor(),
    SamplesDuplicated(),
    LengthWeighted(),
    CallsPunished(),
    FormatPaid(),
    ExcessPaid(),
    HopFactor(),
    ToolFailing(),
    CallsUnread(),
    TurnsTooFew(),
    ShortcutPaid(),
    PolicyNoised(),
    EvalIsTrain(),
    LogSmoothed(),
    PackedUnmasked(),
    ExpertsRerouted(),
    SamplerRequantised(),
    ShardsApart(),
    JudgeFailing(),
    SlowDropped(),
    SamplerOtherAdapter(),
    DraftsAccepted(),
)
"""Every fault there is."""

PRESETS = {
    "verifiers-0.1.3": "mask-as-attention+generation-prompt-missing+tool-schema-missing"
    "+sorted-with-hop-factor",
}
"""What was wrong in a real project, all at once."""


class Planted(NamedTuple):
    """A fault as it was asked for."""

    fault: Fault
    strength: float


def find(text: str | None) -> list[Planted]:
    """The faults of a text such as `mask-as-attention:0.5+groups-mixed`, in planting order."""
    found = [_find_one(one) for one in _each(text)]
    return sorted(found, key=lambda planted: planted.fault.last)


def belonging(text: str | None, hypothesis: str) -> list[str]:
    """The faults of a text that one hypothesis should find, as they were typed."""
    return [one for one in _each(text) if _find_one(one).fault.hypothesis == hypothesis]


def without(text: str | None, hypothesis: str) -> str | None:
    """The text without the faults of one hypothesis, presets written out; None if none is left."""
    theirs = belonging(text, hypothesis)
    return "+".join(one for one in _each(text) if one not in theirs) or None


def changed(config: RunConfig, faults: list[Planted]) -> RunConfig:
    """The config of a run with the faults."""
    for fault, strength in faults:
        config = fault.change(config, strength)
    return config


def plant(trainer: GrpoTrainer, text: str) -> None:
    """Plant faults in a live GRPOTrainer. There is no way back: build another trainer."""
    found = find(text)
    for fault, _ in found:
        if fault.settings:
            raise ConfigError(
                f"The fault {fault.name} is a choice of settings, and this trainer is built.\n"
                "Change them where the trainer is made."
            )
    plant_all(trainer, found)


def plant_all(trainer: GrpoTrainer, faults: list[Planted]) -> None:
    for fault, strength in faults:
        fault.plant(trainer, strength)


def _each(text: str | None) -> list[str]:
    """What is planted, one by one and with its strength; a preset is all of its faults."""
    if text is None:
        return []
    names = "+".join(PRESETS.get(name.strip(), name) for name in text.split("+"))
    return [name.strip() for name in names.split("+")]


def _find_one(text: str) -> Planted:
    name, colon, number = text.partition(":")
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    if fault is None:
        known = ", ".join([*(fault.name for fault in FAULTS), *PRESETS])
        raise ConfigError(f"No fault is called {name!r}.\nKnown: {known}.")
    try:
        strength = float(number) if colon else fault.default
    except ValueError:
        strength = math.nan
    low, high = fault.bounds
    if not low <= strength <= high:
        raise ConfigError(
            f"The strength {number!r} of the fault {name} cannot be used.\n"
            f"It takes a number from {low:g} to {high:g}; without one it is {fault.default:g}."
        )
    return Planted(fault, strength)
