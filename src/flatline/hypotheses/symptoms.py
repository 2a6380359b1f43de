"""What a person sees on the curves -> the hypotheses behind it: `flatline explain kl-explodes`.

One list and not a field of each hypothesis: a symptom is read from its own side, in the order in
which its causes are worth looking at. Tests hold that every hypothesis is behind some symptom, and
that what explains the sign of a symptom (`explains`) is behind it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One way a curve can look wrong."""

    name: str
    """Kebab-case, as `flatline explain` takes it."""
    title: str
    """What a person would say."""
    text: str
    """How to read it, and what it is not."""
    signs: tuple[str, ...] = ()
    """Hypotheses that see the symptom itself: what explains them is behind it."""
    behind: Mapping[str, tuple[str, ...]]
    """What kind of cause -> codes, in the order in which they are worth looking at."""

    @property
    def codes(self) -> tuple[str, ...]:
        """All hypotheses behind it, in their order."""
        return tuple(dict.fromkeys(code for codes in self.behind.values() for code in codes))


SYMPTOMS = (
    Symptom(
        name="reward-flat",
        title="The reward is flat from the start",
        text="First make sure that it is: a mean over too few steps moves by chance, and sorted "
        "data hides a rise. Every report says how the reward moves, with an interval. A "
        "healthy-looking loss proves nothing: the loss of GRPO does not show learning.",
        behind={
            "Nothing to select from": (
                *("H32", "H45", "H39", "H05", "H34", "H41", "H42", "H04", "H65"),
            ),
            "The weights do not move, or not by the gradient": (
                *("H26", "H24", "H25", "H27", "H58", "H57", "H28", "H56", "H29", "H55", "H22"),
                *("H31", "H03"),
            ),
            "The trainer sees something else than the sampler did": (
                *("H09", "H10", "H11", "H12", "H49", "H50", "H02", "H51", "H07", "H15", "H16"),
                *("H61", "H64", "H54", "H20", "H21", "H23", "H66", "H67"),
            ),
            "The sampler does not have the trained weights": (
                *("H06", "H17", "H18", "H19", "H59", "H69"),
            ),
            "Credit goes to the wrong rollouts": (
                *("H33", "H52", "H53", "H01", "H36", "H37", "H40", "H60", "H68"),
            ),
            "The curve misleads": ("H44", "H47", "H48", "H08"),
            "Which part of the stack cannot learn at all": ("H00",),
        },
    ),
    Symptom(
        name="kl-explodes",
        title="The KL explodes, or is not 0 at the first step",
        text="Before the first update the policy is its reference, so the KL of step 1 must be 0. "
        "The usual estimate grows exponentially with a token's gap, so a few tokens dominate it. "
        "Setting beta to 0 hides the symptom and leaves the cause: most of what is below "
        "trains on wrong log-probs, with or without a KL term.",
        signs=("H03",),
        behind={
            "The KL term itself": ("H03", "H55"),
            "The tokens are scored in another context, or are others": (
                *(
                    "H09",
                    "H10",
                    "H67",
                    "H11",
                    "H12",
                    "H02",
                    "H15",
                    "H61",
                    "H64",
                    "H16",
                    "H21",
                    "H23",
                    "H54",
                ),
            ),
            "The policy really left": ("H24", "H06", "H05", "H69"),
        },
    ),
    Symptom(
        name="rises-then-falls",
        title="The reward rises, then falls",
        text="Something is learnt and then lost, or something else is learnt. Look at the step "
        "where the reward turns: do completions grow or shrink there, does the entropy go to 0, "
        "does a gap open between sampler and trainer?",
        signs=("H30",),
        behind={
            "The policy collapses": ("H30", "H24", "H43", "H35", "H03", "H02", "H09", "H60", "H66"),
            "The reward is gamed": ("H38", "H37", "H39"),
            "Sampler and trainer drift apart": (
                *("H63", "H62", "H20", "H17", "H18", "H19", "H22", "H29"),
            ),
            "The data changes": ("H44",),
        },
    ),
    Symptom(
        name="eval-does-not-follow",
        title="The evaluation does not follow the training reward",
        text="Compare like with like first: prompts, limits, temperature, scorer and tools must "
        "be those of training, or differ on purpose.",
        signs=("H08",),
        behind={
            "They measure different things": (
                *("H08", "H21", "H04", "H13", "H40", "H37", "H44", "H48", "H46"),
            ),
            "What rises in training is not the skill": ("H38", "H39", "H05", "H36", "H68"),
            "The evaluation uses other weights": ("H06", "H17", "H18", "H19", "H69"),
            "Training itself is broken": ("H09", "H32", "H24", "H01", "H47"),
        },
    ),
    Symptom(
        name="rewards-equal",
        title="The rewards of a group are all equal",
        text="A group whose rollouts earn the same has advantages of 0 and moves nothing. Some "
        "such groups are normal; a run in which most are learns from the rest alone. TRL's "
        "`reward_std` is over the batch and does not show it; `frac_reward_zero_std` does.",
        signs=("H32",),
        behind={
            "The problems are too hard or too easy": ("H32", "H45"),
            "The reward is the same for all rollouts": ("H39", "H05", "H37", "H52"),
            "The rollouts are the same, or all cut": ("H34", "H30", "H04", "H13", "H14"),
            "The tool never answers, or there are too few turns": ("H41", "H42"),
            "The groups are not groups": ("H33", "H53"),
        },
    ),
    Symptom(
        name="completions-change",
        title="Completions grow, shrink or collapse into one phrase",
        text="Length is a policy like any other: it follows what is paid. Find out whether length "
        "itself is paid for (the loss, the reward), whether completions never end, or "
        "whether a limit cuts them and so decides the reward.",
        signs=("H43", "H14"),
        behind={
            "Length is paid for": ("H35", "H28", "H56", "H36", "H37", "H38"),
            "Completions do not end, or are cut": (
                *("H14", "H04", "H13", "H42", "H02", "H51", "H65"),
            ),
            "The policy collapses": ("H43", "H30", "H34", "H24"),
        },
    ),
    Symptom(
        name="loss-zero-or-nan",
        title="Loss or gradient is 0, or not a number",
        text="With one update a batch and no KL term, the loss of `grpo` is 0 up to rounding at "
        "every step, and that of other loss types near 0: the advantages of a group cancel "
        "while the ratio is 1. That is no defect, and the gradient is not 0. A gradient that "
        "is 0, or a loss that is not a number, is.",
        signs=("H26", "H27"),
        behind={
            "No token is trained, or no advantage differs": ("H32", "H02", "H51", "H53", "H14"),
            "The gradient does not become an update": ("H26", "H57", "H58", "H25", "H27", "H06"),
            "The loss is divided or clipped away": ("H28", "H56", "H29", "H22"),
            "Numbers overflow": ("H24", "H03", "H01", "H20"),
        },
    ),
    Symptom(
        name="logprobs-differ",
        title="Sampler and trainer disagree on log-probs",
        text="At equal weights and on the same tokens the two must agree to rounding. Where they "
        "do not, the trainer improves a policy that is never sampled from. A few hundredths of "
        "a nat in 16 bits are rounding; more is one of these.",
        signs=("H20",),
        behind={
            "Other tokens, or another context": (
                *("H09", "H10", "H11", "H12", "H15", "H61", "H64", "H67", "H16", "H02"),
                *("H49", "H50"),
            ),
            "Other weights": ("H06", "H17", "H18", "H19", "H59", "H69"),
            "Another distribution, or other digits": (
                *("H21", "H23", "H20", "H62", "H63", "H54", "H55"),
            ),
        },
    ),
    Symptom(
        name="tools-unused",
        title="The model stops using its tool, or never learns to",
        text="Look at one transcript before any curve (`flatline show RUN`): what the tool "
        "answered, and whether the trainer saw it.",
        signs=("H41", "H43"),
        behind={
            "The tool does not answer, or too late": ("H41", "H42", "H13", "H04", "H45"),
            "Using it does not pay": ("H36", "H43", "H37", "H65"),
            "The trainer does not see its output, or trains on it": ("H09", "H02", "H07", "H10"),
        },
    ),
)
"""In the order in which people ask."""


def symptom_of(text: str) -> Symptom | None:
    """The symptom of this name; None where none has it."""
    wanted = "-".join(text.lower().split())
    return next((one for one in SYMPTOMS if one.name == wanted), None)


def near_symptoms(words: set[str]) -> list[Symptom]:
    """Symptoms whose name is among these words."""
    return [one for one in SYMPTOMS if words and set(one.name.split("-")) <= words]
