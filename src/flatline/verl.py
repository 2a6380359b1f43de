"""Records a run of verl 0.9: `VERL_USE_EXTERNAL_MODULES=flatline.verl`, and where to.

    VERL_USE_EXTERNAL_MODULES=flatline.verl FLATLINE_RUN=runs/x python -m verl.trainer.main_ppo ...

Importing it is enough; verl does so in each of its processes. docs/frameworks/verl.md says what is
recorded.
"""

from flatline.live.verl.install import install

install()
