"""Exact arithmetic on text a model wrote: + - * /, parentheses, integers and decimals.

    sum      = product (("+" | "-") product)*
    product  = factor (("*" | "/") factor)*
    factor   = "-" factor | number | "(" sum ")"

The parser is our own because the text is not to be trusted: there are no names, no calls and no
powers, and length, nesting and size are limited, so no expression can run long or reach anything.
"""

import re
from fractions import Fraction

MAX_LENGTH = 200
"""Characters of an expression."""
MAX_DEPTH = 20
"""Parentheses and minus signs inside one another."""
MAX_SIZE = 10**15
"""Numerator and denominator of every number, also on the way."""

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|([-+*/()]))")
# What models write for the same signs.
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})


class ExpressionError(ValueError):
    """Why an expression has no value, in words the model can act on."""


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(
            f"the expression has {len(expression)} characters; the limit is {MAX_LENGTH}."
        )
    parser = _Parser(_tokens(expression.translate(_SIGNS)))
    value = parser.sum(depth=0)
    if parser.here:
        raise ExpressionError(f"unexpected {parser.here!r} after a complete expression.")
    return value


def show(value: Fraction) -> str:
    """Digits where a decimal is exact and short, else a fraction such as `7/3`."""
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, 7):
        scaled = value * 10**places
        if scaled.denominator == 1:
            sign, digits = "-" if value < 0 else "", str(abs(scaled.numerator)).zfill(places + 1)
            return f"{sign}{digits[:-places]}.{digits[-places:]}"
    return f"{value.numerator}/{value.denominator}"


def _tokens(text: str) -> list[str]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            seen = text[position:].strip()[:12]
            raise ExpressionError(
                f"cannot read {seen!r}. Use numbers, + - * / and parentheses, such as (3 + 4) * 5."
            )
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens


class _Parser:
    """One method per line of the grammar."""

    def __init__(self, tokens: list[str]) -> None:
        self._rest = iter(tokens)
        self.here = ""
        """The token to be read next; empty at the end."""
        self._advance()

    def sum(self, *, depth: int) -> Fraction:
        value = self._product(depth)
        while self.here in ("+", "-"):
            sign = self._advance()
            right = self._product(depth)
            value = _limited(value + right if sign == "+" else value - right)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.here in ("*", "/"):
            sign = self._advance()
            right = self._factor(depth)
            if sign == "/" and right == 0:
                raise ExpressionError("division by zero.")
            value = _limited(value * right if sign == "*" else value / right)
        return value

    def _factor(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested more than {MAX_DEPTH} deep.")
        token = self._advance()
        if token == "-":
            return -self._factor(depth + 1)
        if token == "(":
            value = self.sum(depth=depth + 1)
            if self._advance() != ")":
                raise ExpressionError("a closing parenthesis is missing.")
            return value
        if not token or token in "+*/)":
            seen = repr(token) if token else "the end"
            raise ExpressionError(f"a number is missing before {seen}.")
        return _limited(Fraction(token))

    def _advance(self) -> str:
        """Hand out the token to be read and move on."""
        token, self.here = self.here, next(self._rest, "")
        return token


def _limited(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > MAX_SIZE:
        raise ExpressionError(f"a number is larger or finer than {len(str(MAX_SIZE)) - 1} digits.")
    return value
