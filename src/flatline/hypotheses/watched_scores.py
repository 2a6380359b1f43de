"""Whether the loss of a watched loop scores tokens by the logits that they were drawn from.

The logits at a position are about the token behind it, and the sampler drew that token from them. A
loss that takes each token's log-prob from the logits at its own place has shapes that agree, a
ratio that begins at 1 and a finite gradient: it makes rewarded completions repeat their tokens.
"""

from flatline.errors import NotRecorded
from flatline.live.stage_found import StageFound
from flatline.trace import Trace

FEWEST_STEPS = 2
"""Steps that must show it."""
LOOKS_LIKE = ("H02", "H06", "H09", "H10", "H12", "H14", "H16", "H17", "H19", "H20", "H21")
"""What sees tokens with a loss beside those that were sampled, or log-probs that are others."""


def of_watched_labels(trace: Trace) -> StageFound | None:
    """None where tokens are scored by the logits that they were drawn from, or where nothing shows
    that these logits are about the token behind them."""
    seen = trace.run.get("labels_unshifted")
    if trace.run.get("source") != "watch" or seen is None or seen["steps"] < FEWEST_STEPS:
        return None
    if not _drawn_from_the_last_logits(trace):
        return None
    return StageFound(
        stage="log-probs",
        departs=True,
        text=f"At {seen['positions']} of {seen['of']} positions of a step the loss pushes the "
        "token that the model was given there, and not the one that comes next, which is what the "
        f"sampler drew from such logits. So it was in {seen['steps']} steps.",
        measured=seen["positions"] / seen["of"],
        direct=True,
        explains=LOOKS_LIKE,
        expected="0",
        fix="Take the logits one position further left: `logits[:, start - 1 : -1]` for the tokens "
        "`ids[:, start:]`.",
        headline="Your loss is off by one: logits are not shifted against the tokens.",
    )


def _drawn_from_the_last_logits(trace: Trace) -> bool:
    """Whether this model was seen to sample: what it drew it drew from the logits before it."""
    table = trace.rollouts
    try:
        return bool((table["model_tokens"] > 0).any())
    except NotRecorded:
        return False
