"""What was asked for: everything that decides one step, and nothing that a trainer keeps."""

from dataclasses import dataclass, field


class NotSpecified(Exception):
    """The specification says nothing about this; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The user's arguments. Defaults are those of the papers, not of a library."""

    group: int
    """Completions of a prompt, G."""
    passes: int = 1
    """Backward passes of an optimizer step."""
    rows_in_pass: int
    """Completions of one pass, all processes together."""
    passes_in_generation: int = 1
    """Passes that one generation is dealt out to."""
    iterations: int = 1
    """How often each generation is trained on."""
    longest: int
    """Tokens of a completion at most."""
    temperature: float = 1.0
    """What logits are divided by, when sampling and when scoring."""
    reward_weights: tuple[float, ...] | None = None
    """One for each reward function; None for all 1."""
    aggregation: str = "sum_then_normalize"
    """How several rewards become one advantage."""
    reward_range: tuple[float, float] | None = None
    """What a row earns is cut to this range; None for no range."""
    baseline: str = "group"
    """Whose mean is taken off a reward: that of the whole `group`, or of its `others`."""
    scale: str = "group"
    """Whose spread divides the advantage: of the rewards of the `group` or the `batch`, of all
    `advantages` themselves, or `none`."""
    mask_cut: bool = False
    """Whether completions that were cut at the limit carry no loss."""
    loss: str = "grpo"
    """How token losses become one number."""
    level: str = "token"
    """What has an importance ratio: each `token`, the whole `sequence` by its mean token, the same
    at each token with that token's gradient (`sequence_token`), or the `product` of its tokens."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 minus this."""
    clip_high: float = 0.2
    """And above 1 plus this."""
    softness: tuple[float, float] = (1.0, 1.05)
    """SAPO's temperatures, of advantages above 0 and of others."""
    gamma: tuple[tuple[float, float], tuple[float, float]] = ((2.0, 3.0), (3.0, 2.0))
    """VESPO's k and lambda, of advantages from 0 on and of others."""
    drift: float | None = None
    """Completions with an advantage below 0 from which the policy has gone further than so many
    nats a token carry no policy loss; None for all of them."""
    correction: tuple[str, float | None, float | None] | None = None
    """How token losses are weighted by what the trainer's policy and the sampler's make of a token:
    `token_truncate`, `token_mask`, `sequence_truncate` or `sequence_mask`, the least and the
    largest weight; None for never."""
    ceiling: float | None = None
    """Two-sided clip: the ratio itself is never above this."""
    beta: float = 0.0
    """Weight of the KL to the reference."""
    kl_place: str = "loss"
    """Whether that KL is added to the `loss` or taken off the `reward`."""
    corrected_kl: bool = False
    """Whether each token's KL is weighted by its ratio."""
    entropy_share: float = 1.0
    """Share of the tokens, those of the highest entropy, that the policy loss is taken of."""
    entropy_bonus: float = 0.0
    """Weight of the mean entropy of the tokens of a pass, which is taken off the loss."""
    learning_rate: float = 1e-6
    """The rate before any schedule."""
    schedule: str = "constant"
    """How it goes on from there."""
    warmup: int = 0
    """Steps of warm-up."""
    steps: int = 1
    """Steps of the whole training."""
    largest_norm: float = 0.0
    """Gradients longer than this are shortened to it; 0 for never."""
    optimizer: str = "adamw"
    """Only AdamW is specified."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's means."""
    epsilon: float = 1e-8
    """AdamW's smallest denominator."""
    decay: float = 0.0
    """AdamW's weight decay."""
    besides: tuple[str, ...] = field(default=())
    """What else was asked for and is not specified, in words."""

    def refuse_besides(self) -> None:
        """Stop where something was asked for that the loss below does not have."""
        if self.besides:
            raise NotSpecified(", ".join(self.besides))
