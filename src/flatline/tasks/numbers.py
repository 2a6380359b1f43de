"""Numbers as people write them, compared exactly.

`$1,080.50`, `1080.5`, `+1080.500` and `1080.50.` are one number. Read are an optional sign (ASCII
or the typographic minus), a currency sign, thousands in groups of three, a decimal part, a percent
sign (which does not scale: `5 %` is 5) and a closing full stop. Fractions, powers of ten, mixed
numbers and groups of another size are not read: `1,5` is one and a half to one writer and a mistake
of another, and a grader that guesses gives away rewards.
"""

import re
from decimal import Decimal

_MINUS = str.maketrans({"−": "-", "–": "-", "﹣": "-", "－": "-"})
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?[$€£]?\s?(?P<inner>[+-]?)(?P<digits>{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)\s?%?\.?"
)


def parse_number(text: str) -> Decimal | None:
    """The number that `text` is, or `None` when it is anything else."""
    match = _NUMBER.fullmatch(text.translate(_MINUS).strip())
    if match is None or (match["sign"] and match["inner"]):
        return None
    # Built from text, a Decimal is exact whatever its length.
    return Decimal(match["sign"] + match["inner"] + match["digits"].replace(",", ""))


def format_number(number: Decimal) -> str:
    """Plain digits: no exponent, no trailing zeros."""
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in {"-0", ""} else text
