"""The error with which printed output ends.

It stands behind the last row, near the end of the file, and was not printed before: what a reward
function or a worker prints now and then ended nothing. Of several, the last counts that does not
only say that another process failed.
"""

import re
from itertools import islice
from pathlib import Path

from flatline.trace.importers.text import lines

NEAR = 60
"""Lines behind the error, at most: other processes say what they lost."""
LONGEST = 2_000
"""Characters of a line that is looked at."""
_BEHIND = r"(\([^()]{1,80}\)\s*|\[[^\[\]]{1,60}\]:?\s*|\|\s*)*"
"""What a launcher puts before a line: `(TaskRunner pid=7719)`, `[rank0]:`."""
_ERROR = re.compile(
    rf"\s*{_BEHIND}(?P<said>(?P<name>([a-z_]\w*\.)*[A-Z]\w*(Error|Exception)\b)(\([\w.]+\))?"
    r"(: .*)?|Killed|Segmentation fault\b.*|Bus error\b.*|slurmstepd: error: .*)\s*"
)
_WORDS = ("Error", "Exception", "Killed", "Segmentation", "Bus error", "slurmstepd")
"""One of these is in every such line, which is seen faster than read."""
_OF_ANOTHER = re.compile(r"ChildFailedError|CalledProcessError|RayTaskError|RayActorError")
_NO_END = re.compile(r"Exception ignored|\b(retry|restart|resum|reconnect)", re.I)


def error_after(path: Path, last: int) -> str:
    """The error that is printed behind the last row, which is on this line."""
    before: set[str] = set()
    found: dict[int, re.Match[str]] = {}
    end = 0
    for number, line in lines(path):
        end = number
        told = len(line) <= LONGEST and any(word in line for word in _WORDS)
        one = _ERROR.fullmatch(line) if told else None
        if number > last and not one and _NO_END.search(line):
            return ""
        if one and number <= last:
            before.add(_kind(one))
        elif one:
            found[number] = one
    new = [one for at, one in found.items() if end - at <= NEAR and _kind(one) not in before]
    own = [one for one in new if not _OF_ANOTHER.search(_kind(one))]
    return next((one["said"].strip() for one in islice(reversed(own or new), 1)), "")


def _kind(one: re.Match[str]) -> str:
    return one["name"] or one["said"].split()[0]
