"""Hypotheses -> verdicts, cheapest evidence first.

    setup = Setup(config=RunConfig(fault="verifiers-0.1.3"), runs=..., experiments=...)
    for conclusion in investigate(setup, [find("H09"), find("H06")], Local()):
        conclusion.verdict

1. The setup as it is runs on the seeds of the first look; every hypothesis shares these runs.
2. Is the mechanism there at all? Its sign and its replay in those runs, its probe in a checkup. If
   it is not, the hypothesis is invalidated, and nothing more is trained.
3. Otherwise an experiment: the suspected cause taken away, matched seeds, a plan written first.
"""

from flatline.investigation.conclusion import Conclusion
from flatline.investigation.inquiry import Listener, investigate, investigate_command
from flatline.investigation.setup import Setup

__all__ = ["Conclusion", "Listener", "Setup", "investigate", "investigate_command"]
