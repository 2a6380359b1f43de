"""What a run recorded, written while it trains and read by everything that diagnoses it.

`Trace` reads, `Recorder` writes from any training loop. `docs/trace.md` describes the files.
"""

from flatline.trace.reader import Trace
from flatline.trace.recorder import Recorder

__all__ = ["Recorder", "Trace"]
