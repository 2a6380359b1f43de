"""Every hypothesis there is, in one explicit tuple. One file each; its docstring is its manual."""

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
from flatline.hypotheses.h17_stale_sampler import StaleSampler
from flatline.hypotheses.h21_sampling_parameters import SamplingParameters
from flatline.hypotheses.h23_dropout_in_scoring import DropoutInScoring
from flatline.hypotheses.h24_learning_rate import LearningRate
from flatline.hypotheses.h26_optimizer_not_stepping import OptimizerNotStepping
from flatline.hypotheses.h32_zero_variance_groups import ZeroVarianceGroups
from flatline.hypotheses.h33_group_integrity import GroupIntegrity
from flatline.hypotheses.h39_reward_parser import RewardParser
from flatline.hypotheses.h44_data_order import DataOrder

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
    StaleSampler(),
    SamplingParameters(),
    DropoutInScoring(),
    LearningRate(),
    OptimizerNotStepping(),
    ZeroVarianceGroups(),
    GroupIntegrity(),
    RewardParser(),
    DataOrder(),
)
"""In the order of their codes; a code is never reused."""


def find(text: str) -> Hypothesis:
    """The hypothesis of a code such as `H09`, or of a name."""
    wanted = text.strip().lower()
    for hypothesis in HYPOTHESES:
        if wanted in (hypothesis.id.lower(), hypothesis.name):
            return hypothesis
    known = ", ".join(f"{hypothesis.id} {hypothesis.name}" for hypothesis in HYPOTHESES)
    raise ConfigError(f"No hypothesis is called {text!r}.\nKnown: {known}.")
