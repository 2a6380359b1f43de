"""All charts of a run, in the order of the page; and which finding points to which of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flatline.diagnosis.report import Report
from flatline.errors import NotRecorded
from flatline.report import group_charts, policy_charts, reward_charts, weight_charts
from flatline.report.charts import Chart, marked
from flatline.report.series import Run

Draw = Callable[[Run], Chart]

CHARTS: tuple[tuple[str, Draw], ...] = (
    ("training reward", reward_charts.reward),
    ("held-out reward", reward_charts.heldout_reward),
    ("log-probs of sampler and trainer", policy_charts.gap),
    ("KL to the reference", policy_charts.kl),
    ("entropy", policy_charts.entropy),
    ("gradient", policy_charts.gradient),
    ("lengths", policy_charts.lengths),
    ("completions that were cut off", policy_charts.truncation),
    ("parts of the reward", reward_charts.parts),
    ("parts inside groups", group_charts.part_covariance),
    ("reward by hops", reward_charts.hops),
    ("advantages", group_charts.advantage),
    ("groups without differences", group_charts.zero_variance),
    ("updates of the weights", weight_charts.updates),
    ("gradients by layer", weight_charts.gradients),
)

POINTS_TO: Mapping[str, tuple[str, ...]] = {
    "H01": ("advantage",),
    "H02": ("gap",),
    "H03": ("kl",),
    "H04": ("truncation", "lengths"),
    "H05": ("part-covariance", "parts"),
    "H06": ("gap", "updates"),
    "H07": ("gap",),
    "H08": ("heldout", "reward"),
    "H09": ("gap", "kl"),
    "H10": ("gap",),
    "H11": ("gap",),
    "H12": ("gap",),
    "H13": ("truncation", "lengths"),
    "H14": ("truncation", "lengths"),
    "H15": ("gap",),
    "H16": ("gap",),
    "H17": ("gap",),
    "H18": ("gap",),
    "H19": ("gap",),
    "H20": ("gap",),
    "H21": ("gap", "entropy"),
    "H22": ("gap",),
    "H23": ("gap",),
    "H24": ("kl", "updates", "reward"),
    "H25": ("updates",),
    "H26": ("updates", "layer-gradients"),
    "H27": ("gradient", "updates"),
    "H28": ("gradient",),
    "H29": ("kl", "gradient"),
    "H30": ("entropy", "zero-variance"),
    "H31": ("kl", "reward"),
    "H32": ("zero-variance", "advantage"),
    "H33": ("advantage",),
    "H34": ("zero-variance", "entropy"),
    "H35": ("lengths",),
    "H36": ("part-covariance", "parts"),
    "H37": ("part-covariance", "parts"),
    "H38": ("parts", "heldout"),
    "H39": ("parts", "part-covariance"),
    "H40": ("hops",),
    "H41": ("reward",),
    "H42": ("truncation", "hops"),
    "H43": ("lengths", "truncation", "entropy"),
    "H44": ("hops", "reward"),
    "H45": ("parts", "zero-variance"),
    "H46": ("heldout", "reward"),
    "H47": ("reward",),
    "H48": ("reward",),
    "H51": ("gap",),
    "H52": ("parts", "reward"),
    "H53": ("advantage",),
    "H55": ("advantage",),
    "H54": ("gap", "kl"),
    "H58": ("updates",),
    "H60": ("reward",),
    "H61": ("gap",),
    "H63": ("gap",),
    "H65": ("lengths", "hops"),
    "H68": ("parts", "reward"),
}
"""Code of a hypothesis -> where its finding can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A chart that cannot be drawn."""

    what: str
    """What it would show."""
    why: str
    """What it lacks, in a few words."""


def draw(run: Run, report: Report) -> tuple[list[Chart], list[Missing]]:
    """Every chart that the trace has the columns for, and what is missing for the others."""
    charts, missing = [], []
    for what, make in CHARTS:
        try:
            charts.append(make(run))
        except NotRecorded as error:
            missing.append(Missing(what=what, why=f"needs {error.column}"))
        except Exception as error:
            # One chart that trips over odd data must not cost the reader all the others.
            why = f"could not be drawn ({type(error).__name__}: {error}), a defect of flatline"
            missing.append(Missing(what=what, why=why))
    return [marked(chart, _marks(chart, report)) for chart in charts], missing


def _marks(chart: Chart, report: Report) -> dict[str, list[int]]:
    """Alarms that point to a chart, with the steps of their evidence."""
    return {
        alarm.hypothesis: [one.step for one in alarm.evidence if one.step is not None]
        for alarm in report.alarms
        if chart.id in POINTS_TO.get(alarm.hypothesis, ())
    }
