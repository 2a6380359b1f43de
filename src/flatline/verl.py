"""Records a run of verl 0.9: `VERL_USE_EXTERNAL_MODULES=flatline.verl`, and where to.

    VERL_USE_EXTERNAL_MODULES=flatline.verl FLATLINE_RUN=runs/x python -m verl.trainer.main_ppo ...

verl imports it in each of its processes, and that is enough. `Engine` is what a checkup needs of
one of verl's engines: `flatline.checkup(flatline.verl.Engine(...))`. docs/other-trainers.md has
both.
"""

import os

from flatline.live.verl.engine import Engine
from flatline.live.verl.install import install

__all__ = ["Engine"]

if __name__ in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    install()
