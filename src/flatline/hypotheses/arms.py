"""Settings that several hypotheses suspect, each against what it is without the suspected cause."""

from flatline.config import RunConfig
from flatline.hypotheses.base import Setting
from flatline.tasks.base import ANSWER, COMBINED


def without_kl(config: RunConfig) -> Setting | None:
    """The weight of the KL term in use against none."""
    if config.kl_beta == 0:
        return None
    return Setting("kl_beta", 0.0, control=f"KL weight {config.kl_beta:g}", treated="KL weight 0")


def answer_alone(config: RunConfig) -> Setting | None:
    """The whole reward against its right-or-wrong part."""
    if config.reward != COMBINED:
        return None
    return Setting("reward", ANSWER, control="the whole reward", treated=f"`{ANSWER}` alone")


def at_temperature_one(config: RunConfig) -> Setting | None:
    """A low temperature against 1."""
    if config.temperature >= 1:
        return None
    control = f"temperature {config.temperature:g}"
    return Setting("temperature", 1.0, control=control, treated="temperature 1")


def longer_turns(config: RunConfig) -> Setting:
    """The tokens of a turn against twice as many."""
    turn = config.turn_tokens
    control, treated = f"turns of {turn} tokens", f"turns of {2 * turn} tokens"
    return Setting("max_new_tokens", 2 * turn, control=control, treated=treated)
