"""Completions about one image are scored with another image, or with none.

## What goes wrong
Images of a batch lie in one tensor, and which of them belong to which row is a matter of counts: of
patches, of tiles, of images a row. One wrong count, a shuffle that leaves images behind, padding on
the other side, or a scoring pass that is not handed images at all, and the trainer scores words
about one picture in front of another. Shapes fit, so nothing fails; log-probs, ratios, the KL and
the gradient are those of a question that was not asked.

## Sign
None: images are not recorded. H20 sees that sampler and trainer disagree.

## Probe
Some rollouts of the batch are scored again with blank images: if no log-prob changes, the trainer
does not see them, which is a fault. Then with the images of the other prompts in turn, if all have
one size: a fault if those of another prompt give log-probs five times nearer to the sampler's than
a rollout's own, which are more than 0.05 nat off. Costs one scoring pass of a few rows for each
prompt among them. Does not apply to text models. The stages of the specification (H49 to H59) could
not be tested on a model with images.

## Experiment
None: what is wrong is code. Fix it, and compare matched seeds before and after.

## Fix
Move images with their rows through every shuffle and split, hand all that the processor gave to
every scoring pass, and compare one log-prob of sampler and trainer on two rows with different
images.

## Not to be confused with
H10 template-drift: the text in front differs. H20 numeric-mismatch: both see the same image and
round differently. H09 loss-mask-as-attention: the question is hidden, whatever it is made of.

## References
unsloth pull requests 11031 (old and reference log-probs were taken of the text alone) and 5197
(images of other rows where a row has several); TRL issues 5785 (padding on two sides, image tokens
are lost in shorter rows) and 6274 (another row's slice of pixels after a tool call).
"""

from typing import TYPE_CHECKING

from flatline.hypotheses.base import Evidence, Finding, Hypothesis, Level

if TYPE_CHECKING:
    from flatline.live.records import ImageGaps
    from flatline.live.subject import Subject

UNSEEN = 1e-6
"""Mean change in nats by blank images, below which nobody looks at them."""
APART = 0.05
"""Mean gap in nats with a rollout's own image, above which another one is looked for."""
NEARER = 5
"""How many times nearer another one must be."""


class AnotherImage(Hypothesis):
    id = "H67"
    name = "another-image"
    headline = "Your trainer scores completions with an image they were not written about."
    explains = ("H03", "H06", "H20")
    meaning = "The policy learns to say of one image what was right of another."
    fix = "Move images with their rows, and hand them to every pass that scores."

    def probe(self, subject: "Subject") -> Finding:
        """Whose image gives the sampler's log-probs?"""
        found = subject.image_gaps()
        if found is None:
            return self.not_applicable("the model is shown no images.", excluded_by="the model")
        if found.seen < UNSEEN:
            return self.found(
                Level.FAULT,
                "With blank images in place of its own, no rollout is scored differently: the "
                "trainer does not see them.",
                measured=found.seen,
                expected="a change",
                headline="Your trainer does not see the images.",
                proven=True,
            )
        return self._judged(found)

    def _judged(self, found: "ImageGaps") -> Finding:
        if found.own is None or not found.own < float("inf"):
            return self.too_little("the sampler gives no log-probs to compare with")
        nearest = min(found.others, default=None)
        if found.own <= APART:
            text = f"With its own image a rollout is scored within {found.own:.1g} nat of how it "
            return self.found(
                Level.OK,
                f"{text}was sampled; blank images are worth {found.seen:.2g}.",
                measured=found.own,
                expected=f"below {APART:g}",
                looked_at=1,
            )
        if nearest is None or nearest * NEARER >= found.own:
            why = "no other prompt has images of that size" if nearest is None else "no other fits"
            return self.found(
                Level.UNKNOWN,
                f"Sampler and trainer are {found.own:.2g} nat apart with a rollout's own image, "
                f"and {why}: look at H20 and H10 first.",
            )
        by = found.others.index(nearest) + 1
        return self.found(
            Level.FAULT,
            f"With the image of another prompt a rollout is scored within {nearest:.1g} nat of how "
            f"it was sampled, with its own {found.own:.2g} off.",
            measured=found.own,
            expected=f"below {APART:g}",
            evidence=[Evidence(text=f"the image that fits is that of the prompt {by} further on")],
            severity=found.own / APART,
            proven=True,
        )
