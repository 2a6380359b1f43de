"""Blocks that a trainer prints: a heading that names the step, and below it one number a line.

    ==================== Step 12/200 ====================
    📊 Training Results:
      • Loss: -0.0099
      • Avg Reward: 0.4004
    ⏱️  Timing:
      • Total step time: 187.27s

NeMo-RL prints such blocks, and so do many loops of one's own. A line that ends in a colon begins a
section, and its name goes before the names in it: `Timing/Total step time`. Results of the training
have none. Everything else between the lines is passed over.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from flatline.trace.importers.last_words import error_after
from flatline.trace.importers.log import Entry, Log
from flatline.trace.importers.resolve import is_known
from flatline.trace.importers.text import lines

FEWEST = 3
"""Blocks that make a log, and blocks in which a name occurs: what a model wrote, and somebody
printed, hardly comes again."""
LOOKED_AT = 5_000
"""Lines before the third block."""
LONGEST = 200
"""Characters of a line that is read; samples are longer."""
_HEADING = re.compile(
    r"(\x1b\[[\d;]*m|\W|_)*((training|learning|global|optimizer|train)[ _])?"
    r"(step|iteration|iter|update)[ #:]*(?P<step>\d+)( *(/|of) *(?P<planned>\d+))?"
    r"(\x1b\[[\d;]*m|\W|_)*",
    re.I,
)
_SECTION = re.compile(r"\W*(?P<name>[a-z][\w /-]{0,40}?) *:\s*", re.I)
_LINE = re.compile(
    r"\W*(?P<name>[a-z][\w ./@()-]{0,80}?) *[:=] *"
    r"(?P<value>[-+]?(\d[\d,]*\.?\d*(e[-+]?\d+)?|nan|inf))"
    r" ?(?P<unit>%|[a-z/]{0,12})( *\(.*\))?\s*",
    re.I,
)
_EVALUATED = re.compile(r"(val|eval|test)\w*/", re.I)
_OF_TRAINING = re.compile(r"(training|train)?[ _]*(results|metrics|statistics|stats|losses)?", re.I)
_RESULTS = re.compile(r"[ _]+(results|metrics|statistics|stats)$", re.I)

Block = tuple[int, dict[str, str]]
"""Where it begins, and its names and numbers."""


def prints_blocks(path: Path) -> bool:
    """Whether a text file is blocks of numbers under headings."""
    blocks = [block for _, block in _blocks(islice(lines(path), LOOKED_AT))]
    full = [block for block in blocks if len(block) > FEWEST]
    return len(full) >= FEWEST and all(any(is_known(n) for n in one if n != "step") for one in full)


def read_blocks(path: Path) -> Log:
    """A row of each block, of the names that come again."""
    found = list(_blocks(lines(path)))
    often = Counter(name for _, block in found for name in block)
    planned = {one["planned"] for _, line in lines(path) if (one := _HEADING.fullmatch(line))}
    total = planned.pop() if len(planned) == 1 else None
    log = Log(source="printed", path=path, config={"max_steps": int(total)} if total else {})
    log.error = error_after(path, found[-1][0])
    for number, block in found:
        row = {name: value for name, value in block.items() if often[name] >= FEWEST}
        log.entries.append(Entry(f"line {number}", dict(row)))
    return log


def _blocks(numbered: Iterable[tuple[int, str]]) -> Iterator[Block]:
    block = {"step": "0"}  # what is evaluated before the first step
    begins, section = 0, ""
    for number, line in numbered:
        if len(line) > LONGEST:
            continue
        if heading := _HEADING.fullmatch(line):
            if len(block) > 1 and (begins or _is_evaluated(block)):
                yield begins, block
            block, begins, section = {"step": heading["step"]}, number, ""
        elif named := _SECTION.fullmatch(line):
            section = _prefix(named["name"])
        elif one := _LINE.fullmatch(line):
            block.setdefault(section + one["name"].strip(), _worth(one))
    if len(block) > 1 and begins:
        yield begins, block


def _is_evaluated(block: dict[str, str]) -> bool:
    """Whether what stands before the first heading is an evaluation: settings stand there too."""
    return any(_EVALUATED.match(name) for name in block)


def _prefix(section: str) -> str:
    """What goes before the names of a section: `Validation/` of `Validation Results`."""
    return "" if _OF_TRAINING.fullmatch(section) else f"{_RESULTS.sub('', section)}/"


def _worth(one: re.Match[str]) -> str:
    value = one["value"].replace(",", "")
    return repr(float(value) / 100) if one["unit"] == "%" else value
