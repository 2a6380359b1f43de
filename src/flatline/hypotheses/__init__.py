"""Every hypothesis there is, in one explicit tuple. One file each; its docstring is its manual."""

import difflib
import re

from flatline.errors import ConfigError
from flatline.hypotheses.base import Hypothesis
from flatline.hypotheses.h00_positive_control import PositiveControl
from flatline.hypotheses.h01_advantage_scaling import AdvantageScaling
from flatline.hypotheses.h02_token_masking import TokenMasking
from flatline.hypotheses.h03_kl_divergence import KlDivergence
from flatline.hypotheses.h04_context_truncation import ContextTruncation
from flatline.hypotheses.h05_reward_signal import RewardSignal
from flatline.hypotheses.h06_lora_weight_sync import LoraWeightSync
from flatline.hypotheses.h07_multi_step import MultiStep
from flatline.hypotheses.h08_evaluation_mismatch import EvaluationMismatch
from flatline.hypotheses.h09_loss_mask_as_attention import LossMaskAsAttention
from flatline.hypotheses.h10_template_drift import TemplateDrift
from flatline.hypotheses.h11_retokenisation import Retokenisation
from flatline.hypotheses.h12_history_rewritten import HistoryRewritten
from flatline.hypotheses.h13_sampler_limits import SamplerLimits
from flatline.hypotheses.h14_end_of_sequence import EndOfSequence
from flatline.hypotheses.h15_padding import Padding
from flatline.hypotheses.h16_special_tokens import SpecialTokens
from flatline.hypotheses.h17_stale_sampler import StaleSampler
from flatline.hypotheses.h18_merge_rounding import MergeRounding
from flatline.hypotheses.h19_stale_cache import StaleCache
from flatline.hypotheses.h20_numeric_mismatch import NumericMismatch
from flatline.hypotheses.h21_sampling_parameters import SamplingParameters
from flatline.hypotheses.h22_importance_weights import ImportanceWeights
from flatline.hypotheses.h23_dropout_in_scoring import DropoutInScoring
from flatline.hypotheses.h24_learning_rate import LearningRate
from flatline.hypotheses.h25_rounded_updates import RoundedUpdates
from flatline.hypotheses.h26_optimizer_not_stepping import OptimizerNotStepping
from flatline.hypotheses.h27_gradient_clipping import GradientClipping
from flatline.hypotheses.h28_loss_normalisation import LossNormalisation
from flatline.hypotheses.h29_ratio_clipping import RatioClipping
from flatline.hypotheses.h30_entropy_collapse import EntropyCollapse
from flatline.hypotheses.h31_kl_anchor import KlAnchor
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.hypotheses.h33_group_integrity import GroupIntegrity
from flatline.hypotheses.h34_duplicate_samples import DuplicateSamples
from flatline.hypotheses.h35_length_bias import LengthBias
from flatline.hypotheses.h36_turn_credit import TurnCredit
from flatline.hypotheses.h37_format_dominates import FormatDominates
from flatline.hypotheses.h38_reward_hacking import RewardHacking
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.hypotheses.h40_hop_factor import HopFactor
from flatline.hypotheses.h41_tool_errors import ToolErrors
from flatline.hypotheses.h42_turn_budget import TurnBudget
from flatline.hypotheses.h43_behaviour_collapse import BehaviourCollapse
from flatline.hypotheses.h44_data_order import DataOrder
from flatline.hypotheses.h45_no_headroom import NoHeadroom
from flatline.hypotheses.h46_evaluation_leak import EvaluationLeak
from flatline.hypotheses.h47_seed_noise import SeedNoise
from flatline.hypotheses.h48_logs_lie import LogsLie
from flatline.hypotheses.h49_prompts_depart import PromptsDepart
from flatline.hypotheses.h50_completions_depart import CompletionsDepart
from flatline.hypotheses.h51_mask_departs import MaskDeparts
from flatline.hypotheses.h52_rewards_depart import RewardsDepart
from flatline.hypotheses.h53_advantages_depart import AdvantagesDepart
from flatline.hypotheses.h54_logprobs_depart import LogprobsDepart
from flatline.hypotheses.h55_ratio_departs import RatioDeparts
from flatline.hypotheses.h56_loss_departs import LossDeparts
from flatline.hypotheses.h57_gradient_departs import GradientDeparts
from flatline.hypotheses.h58_update_departs import UpdateDeparts
from flatline.hypotheses.h59_delivery_departs import DeliveryDeparts
from flatline.hypotheses.h60_processes_apart import ProcessesApart
from flatline.hypotheses.h61_packed_neighbours import PackedNeighbours
from flatline.hypotheses.h62_expert_routing import ExpertRouting
from flatline.hypotheses.h63_growing_mismatch import GrowingMismatch
from flatline.hypotheses.h64_shard_borders import ShardBorders
from flatline.hypotheses.h65_slow_dropped import SlowDropped
from flatline.hypotheses.h66_speculative_drafts import SpeculativeDrafts
from flatline.hypotheses.h67_another_image import AnotherImage
from flatline.hypotheses.h68_verifier_failures import VerifierFailures
from flatline.hypotheses.h69_adapters_mixed_up import AdaptersMixedUp
from flatline.hypotheses.symptoms import near_symptoms

HYPOTHESES: tuple[Hypothesis, ...] = (
    PositiveControl(),
    AdvantageScaling(),
    TokenMasking(),
    KlDivergence(),
    ContextTruncation(),
    RewardSignal(),
    LoraWeightSync(),
    MultiStep(),
    EvaluationMismatch(),
    LossMaskAsAttention(),
    TemplateDrift(),
    Retokenisation(),
    HistoryRewritten(),
    SamplerLimits(),
    EndOfSequence(),
    Padding(),
    SpecialTokens(),
    StaleSampler(),
    MergeRounding(),
    StaleCache(),
    NumericMismatch(),
    SamplingParameters(),
    ImportanceWeights(),
    DropoutInScoring(),
    LearningRate(),
    RoundedUpdates(),
    OptimizerNotStepping(),
    GradientClipping(),
    LossNormalisation(),
    RatioClipping(),
    EntropyCollapse(),
    KlAnchor(),
    ZeroVarianceGroups(),
    GroupIntegrity(),
    DuplicateSamples(),
    LengthBias(),
    TurnCredit(),
    FormatDominates(),
    RewardHacking(),
    RewardParser(),
    HopFactor(),
    ToolErrors(),
    TurnBudget(),
    BehaviourCollapse(),
    DataOrder(),
    NoHeadroom(),
    EvaluationLeak(),
    SeedNoise(),
    LogsLie(),
    PromptsDepart(),
    CompletionsDepart(),
    MaskDeparts(),
    RewardsDepart(),
    AdvantagesDepart(),
    LogprobsDepart(),
    RatioDeparts(),
    LossDeparts(),
    GradientDeparts(),
    UpdateDeparts(),
    DeliveryDeparts(),
    ProcessesApart(),
    PackedNeighbours(),
    ExpertRouting(),
    GrowingMismatch(),
    ShardBorders(),
    SlowDropped(),
    SpeculativeDrafts(),
    AnotherImage(),
    VerifierFailures(),
    AdaptersMixedUp(),
)
"""In the order of their codes; a code is never reused."""


def find(text: str) -> Hypothesis:
    """The hypothesis of a code such as `H09` or `9`, or of a name."""
    wanted = "-".join(text.lower().split())
    code = f"h{wanted.removeprefix('h').zfill(2)}" if wanted else ""
    for hypothesis in HYPOTHESES:
        if hypothesis.id.lower() == code or hypothesis.name == wanted:
            return hypothesis
    symptoms = [one.name for one in near_symptoms(set(wanted.split("-")))]
    meant = ", ".join([*symptoms, *(f"{one.id} {one.name}" for one in _near(wanted))])
    hint = f"Did you mean {meant}?\n" if meant else ""
    raise ConfigError(
        f"No hypothesis is called {text!r}.\n{hint}`flatline explain` lists all {len(HYPOTHESES)}."
    )


def _near(wanted: str, *, most: int = 4) -> list[Hypothesis]:
    """What may have been meant: words of a name, a mistyped name, words of what goes wrong."""
    words = set(wanted.split("-")) - {""}
    names = {one.name: one for one in HYPOTHESES}
    of_name = [one for one in HYPOTHESES if words and words <= set(one.name.split("-"))]
    mistyped = [names[name] for name in difflib.get_close_matches(wanted, names, n=most)]
    of_fault = [one for one in HYPOTHESES if words and words <= _words(one)]
    return list(dict.fromkeys([*of_name, *mistyped, *of_fault]))[:most]


def _words(hypothesis: Hypothesis) -> set[str]:
    """Of its name and of the sentence that says what goes wrong."""
    first = hypothesis.manual().splitlines()[0].lower()
    return {*hypothesis.name.split("-"), *re.findall(r"\w+", first)}
