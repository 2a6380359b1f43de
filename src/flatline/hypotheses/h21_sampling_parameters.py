"""The sampler draws from another distribution than the trainer computes: temperature, top-p, top-k.

## What goes wrong
The trainer takes log-probs of softmax(logits / T). A sampler with another temperature, with tokens
cut off by top-p, top-k or min-p, or with a repetition penalty draws from something else. Settings
that are not sent are often filled in from the model's `generation_config.json` (Qwen2.5: T 0.7,
top-p 0.8, top-k 20, penalty 1.05). Ratios are then wrong from the first token on, and what is cut
off is never explored.

## Sign
The log-probs of the first step, where both sides hold the same weights. Suspected:

- a slope of the trainer's on the sampler's that differs from 1 by more than 0.05, with a fit of R²
  above 0.8: another temperature;
- a trainer that is never above the sampler and below it by more than 1e-3 nat on average: the
  sampler cut tokens off;
- a `temperature` other than that of the loss, if the run says both: a server may give log-probs at
  the loss's temperature whatever it draws at;
- in a watched loop, drawn tokens that are likelier at another temperature than the gradient of the
  loss shows (by 20 nats and 30 %), a tenth of them from the least likely tenth there. Both of its
  log-probs are the model's own at temperature 1, so that their slope says nothing: where the tokens
  do not tell, it is unknown, and said what they favour;
- by name, what `generate` has in force and nobody asked for (a penalty, a cut or a temperature of
  the model's own `generation_config`), if sampler and trainer are as far apart as H20 needs and the
  sampler's own processors change at least half of that.

Settings that cut are noted.

## Probe
The sign, read on one batch of the live trainer.

## Experiment
The setting that cuts tokens off against one that keeps all (`top_k` 0, `top_p` 1, `min_p` 0, the
first of them that cuts, others as they are), or a planted fault against none; matched seeds.
`temperature` is no factor here: flatline divides the trainer's logits by it as well.

## Fix
Send every sampling parameter explicitly, keep all tokens (`top_p=1, top_k=-1, min_p=0`, penalty 1),
start vLLM with `--generation-config vllm` and ask for `processed_logprobs`.

## Not to be confused with
H09 and H10: the gap does not follow the log-prob. H20 bf16 arithmetic: noise around 0 on both
sides, and no parameter in force that nobody asked for. H34: the same completions again and again,
which a low temperature also gives.

## References
TRL issues 4159, 4163 and 4772; TRL up to 0.26.0 (`museum/exhibits/trl_generation_config.py`); vLLM
pull request 15281; NeMo-RL 3497. The seeds' runs sampled with T 0.5, top-p 0.95 and, from the
model's own file, top-k 20.
"""

from flatline.config import RunConfig
from flatline.errors import NotRecorded
from flatline.hypotheses.base import Finding, Hypothesis, Level, Setting
from flatline.hypotheses.drawn_at import DrawnAt, drawn_at, is_watched
from flatline.hypotheses.h20_numeric_mismatch import APART, APART_BF16
from flatline.hypotheses.logprobs import Gaps, at_equal_weights, mean_over, prefix_spread
from flatline.hypotheses.sampling_bent import asked_to_bend, bent_by
from flatline.trace import Trace

SLOPE = 0.05
"""Difference of the slope from 1. Healthy: 1e-6, in bf16 below 0.01; see docs/hypotheses.md."""
STRAIGHT = 0.8
"""R² of a gap that a temperature explains. Another context gives below 0.1."""
CUT = 1e-3
"""Mean gap in nats below the sampler, never above it. Healthy: 0 in the mean."""
CUT_AT_MOST = 0.5
"""Mean gap in nats of which cutting tokens off is the reason; a lost context gives more."""
ASKED = APART_BF16
"""Mean gap in nats from which on a parameter that was asked for is suspected: bf16 alone takes two
engines as far apart in published runs, and they learn."""
FEWEST = 3
"""Prompts that a slope is taken over."""
NOISE = 1e-2
"""Nats by which equal beginnings may differ; more is H23's."""
CUTS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Settings of a run that cut, and where they do not; the one that Qwen's own file sets is first."""
TEMPERATURES = ("temperature", "loss_temperature")
"""Settings: what the sampler divides logits by, and what the loss does."""


class SamplingParameters(Hypothesis):
    id = "H21"
    name = "sampling-parameters"
    headline = "Your sampler draws from a different distribution than your trainer assumes."
    explains = ("H03", "H08", "H11", "H20", "H22", "H34")
    meaning = "The policy that is trained is not the one that was sampled from."
    fix = (
        "Sample from the whole distribution (no top-k, top-p, min-p, repetition penalty or least "
        "length) at the "
        "temperature that the trainer divides by; send that with each request."
    )
    mechanism = (
        "The trainer's log-probs follow the sampler's with another slope, or always lie below; in "
        "the other arm they agree."
    )
    on_one_batch = True

    def sign(self, trace: Trace) -> Finding:
        """Does the gap follow the log-prob, or lie on one side?"""
        drawn, taken = (trace.settings.get(name) for name in TEMPERATURES)
        if drawn is not None and taken is not None and drawn != taken:
            return self._other_temperature(drawn, taken)
        if is_watched(trace):
            return self._drawn_at(drawn_at(trace))
        cuts = asked_to_bend(trace)
        try:
            gaps = at_equal_weights(trace)
        except NotRecorded:
            if cuts:
                return self._settings(cuts)
            raise
        slope, straight = gaps.line()
        if slope.n < FEWEST:
            return self.too_little(
                f"{FEWEST - slope.n} more prompts with tokens in doubt are needed"
            )
        finding = (
            self._by_name(trace, gaps)
            or self._temperature(trace, gaps)
            or self._cut_off(trace, gaps, cuts)
        )
        if finding is not None:
            return finding
        if cuts:
            return self._settings(cuts)
        text = (
            f"the trainer's log-probs follow the sampler's with slope {1 + slope.value:.3f} "
            f"(R² {straight:.3f})"
        )
        if straight < STRAIGHT or slope.low > SLOPE or slope.high < -SLOPE:
            return self.too_little(f"{text}, so that something else than a temperature parts them")
        return self.found(
            Level.OK,
            f"T{text[1:]}.",
            measured=1 + slope.value,
            expected=f"1 ± {SLOPE:g}",
            looked_at=slope.n,
        )

    def suspected(self, config: RunConfig) -> Setting | None:
        """Tokens cut off against all kept; one setting at a time."""
        cuts = [name for name in CUTS if getattr(config, name) != CUTS[name]]
        if not cuts:
            return None
        name = cuts[0]
        return Setting(
            name,
            CUTS[name],
            control=f"{name} {getattr(config, name):g}",
            treated=f"{name} {CUTS[name]:g}",
        )

    def _by_name(self, trace: Trace, gaps: Gaps) -> Finding | None:
        """What bends the distribution, by name. One that changes nothing is nobody's fault."""
        apart, limit = gaps.mean(), APART_BF16 if gaps.coarse else APART
        bent = bent_by(trace, gaps)
        if bent is None or apart.low <= limit:
            return None
        told = f"{apart.value:.2g} [{apart.low:.2g}, {apart.high:.2g}] nat per token"
        if bent.unasked:
            text = (
                f"The sampler draws with {', '.join(bent.unasked)}, which no argument asks for: a "
                "`generation_config` fills it in, often the model's own. The trainer scores "
                f"without it, {told} apart before any update."
            )
        else:
            text = (
                f"The sampler draws with {', '.join(bent.asked)}, and the trainer scores without "
                f"it: {told} apart before any update."
            )
        return self.found(
            Level.SUSPECT if bent.unasked or apart.low > ASKED else Level.NOTE,
            text,
            measured=apart,
            expected=f"below {limit if bent.unasked else ASKED:g}",
            evidence=gaps.worst(trace, gaps.unsure),
            severity=apart.value / limit,
        )

    def _temperature(self, trace: Trace, gaps: Gaps) -> Finding | None:
        slope, straight = gaps.line()
        off = slope.low > SLOPE or slope.high < -SLOPE
        noisy = prefix_spread(trace, [gaps.place[0][0]]).value > NOISE
        if not off or straight < STRAIGHT or noisy:
            return None
        hotter = "hotter" if slope.value > 0 else "colder"
        return self.found(
            Level.SUSPECT,
            f"The trainer's log-probs follow the sampler's with slope {1 + slope.value:.2f} "
            f"[{1 + slope.low:.2f}, {1 + slope.high:.2f}] (R² {straight:.2f}): the sampler is "
            f"{hotter} than the trainer's temperature of {trace.settings.get('temperature')}.",
            measured=slope._replace(value=1 + slope.value, low=1 + slope.low, high=1 + slope.high),
            expected=f"1 ± {SLOPE:g}",
            evidence=gaps.worst(trace, gaps.unsure),
            severity=abs(slope.value) / SLOPE,
        )

    def _cut_off(self, trace: Trace, gaps: Gaps, cuts: list[str]) -> Finding | None:
        below = mean_over(-gaps.gap, gaps.prompt)
        if cuts or not gaps.one_sided or below.low <= CUT or below.value > CUT_AT_MOST:
            return None
        return self.found(
            Level.SUSPECT,
            f"The trainer is never above the sampler and {below.value:.2g} [{below.low:.2g}, "
            f"{below.high:.2g}] nat below it: the sampler cuts tokens off, although no setting "
            "says so.",
            measured=below,
            expected=f"below {CUT:g}",
            evidence=gaps.worst(trace, gaps.unsure),
            severity=below.value / CUT,
        )

    def _other_temperature(self, drawn: float, taken: float) -> Finding:
        return self.found(
            Level.SUSPECT,
            f"What is trained was sampled at temperature {drawn:g}, and the loss takes log-probs "
            f"at {taken:g}.",
            measured=float(drawn),
            expected=f"{taken:g}",
            severity=abs(drawn - taken) / SLOPE,
        )

    def _drawn_at(self, seen: DrawnAt) -> Finding:
        """The logits are heard before the loop changes them: its tokens alone can tell."""
        if seen.unsure:
            return self.found(Level.UNKNOWN, f"{seen.favours}, but {seen.unsure}.")
        if not seen.another:
            return self.found(
                Level.OK,
                f"{seen.favours}.",
                measured=seen.drawn,
                expected=f"{seen.taken:g}",
                looked_at=seen.rollouts,
            )
        return self.found(
            Level.SUSPECT,
            f"The loop draws its tokens as at a temperature of about {seen.drawn:.2g}, and its "
            f"loss takes their log-probs at {seen.taken:g}: {seen.tokens} tokens of "
            f"{seen.rollouts} rollouts are {seen.nats:.0f} nats likelier at the former.",
            measured=seen.drawn,
            expected=f"{seen.taken:g}",
            severity=abs(seen.drawn - seen.taken) / SLOPE,
            fix="Divide the logits by the same temperature in the sampler and in the loss, or "
            "correct for the difference with importance weights.",
        )

    def _settings(self, cuts: list[str]) -> Finding:
        return self.found(
            Level.NOTE,
            f"The sampler draws from another distribution than the policy's own "
            f"({', '.join(cuts)}), and the trainer's log-probs do not know of it.",
            expected="every token drawn with its own probability",
        )
