"""How answers, citations and retrieved documents are scored. Pure functions on text and ids.

Exact match and F1 follow the official MuSiQue evaluation, which is SQuAD's: both texts are
lower-cased, lose ASCII punctuation, the articles a, an, the, and extra space; the best value over
the gold answer and its aliases counts. Beyond the official rule, accented letters are one thing
however they are encoded, and so are all dashes and all apostrophes: passages write `1213–1288`
and `O'Brien` where models write `1213-1288` and `O’Brien`.

Answers are additionally accepted in other spellings of the same thing (`answer_variants`). The rule
that keeps a wrong answer out: a variant may only rewrite one number or one pair of quotation marks
in place, so every variant still says the same words in the same order, and it never

- turns a cardinal into an ordinal or back (3 is not 3rd);
- touches a number that is part of a longer one (3.5, 1,400, $3, 1213-1288, twenty thousand one);
- drops or adds a word.

Model output is hostile. Nothing that reads it backtracks: tags are found with `str.find`, and the
time is linear in the length of the text. Variants are made of gold answers only.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

FORMAT_TAGS = ("think", "cite", "answer")
"""The tags of a final message, in their order."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_LONGEST_COMPOSED = 1000
"""Characters of an answer whose accents are composed: a run of them costs its length squared."""
_ONE_MARK = str.maketrans(dict.fromkeys("-‐‑‒—―−", "–") | dict.fromkeys("'‘ʼ", "’"))
"""Not to the ASCII marks: normalisation drops those, and `2–1` would become 21."""
_LONGEST_ID = 9
"""Digits of a citation; Python refuses to read integers of thousands of digits."""


# -- answers ----------------------------------------------------------------------------------


def normalize_answer(text: str) -> str:
    """What is left of an answer for comparison."""
    if len(text) <= _LONGEST_COMPOSED:
        text = unicodedata.normalize("NFC", text)
    text = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(text.split())


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1 if the prediction equals one of the answers after normalisation."""
    seen = _forms(prediction)
    return float(any(_same_form(seen, _forms(answer)) for answer in answers))


def token_f1(prediction: str, answers: Iterable[str]) -> float:
    """The best overlap of words with one of the answers."""
    seen = [form.split() for form in _forms(prediction)]
    return max(
        (
            _overlap(one, form.split())
            for answer in answers
            for one, form in zip(seen, _forms(answer), strict=True)
        ),
        default=0.0,
    )


def _forms(text: str) -> tuple[str, str]:
    """The answer as officially normalised, and with one kind of dash and of apostrophe."""
    folded = normalize_answer(text.translate(_ONE_MARK)).split()
    # A dash that stands alone is no word that two answers could share.
    return normalize_answer(text), " ".join(word for word in folded if word.strip("–’"))


def _same_form(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return any(left == right for left, right in zip(one, other, strict=True))


def _overlap(seen: Sequence[str], gold: Sequence[str]) -> float:
    if not seen or not gold:
        return float(seen == gold)  # an answer such as "A" normalises to nothing
    shared = (Counter(seen) & Counter(gold)).total()
    return _f1(shared / len(seen), shared / len(gold))


def _f1(precision: float, recall: float) -> float:
    if precision + recall == 0:
        return 0.0
    return 2 * precision * recall / (precision + recall)


# -- documents --------------------------------------------------------------------------------


def recall(found: Collection[int], gold: Collection[int]) -> float:
    """Share of the gold documents that were found; there must be gold documents."""
    return len(set(found) & set(gold)) / len(set(gold))


def precision(found: Collection[int], gold: Collection[int]) -> float:
    """Share of the found documents that are gold; 0 if nothing was found."""
    return len(set(found) & set(gold)) / len(set(found)) if found else 0.0


def citation_f1(cited: Collection[int], gold: Collection[int]) -> float:
    """F1 between cited and gold document ids; there must be gold documents."""
    return _f1(precision(cited, gold), recall(cited, gold))


_BETWEEN_IDS = re.compile(r'[,;:、\s\[\](){}"*]+')


class Citations(NamedTuple):
    """What a `<cite>` tag holds."""

    ids: tuple[int, ...]
    """The document ids, each once, in the order written."""
    unreadable: tuple[str, ...]
    """What is no document id."""


def parse_citations(text: str) -> Citations:
    """Document ids between space, commas, colons, brackets, quotes or stars; `#` is forgiven."""
    words = (word.strip("#.") for word in _BETWEEN_IDS.split(text))
    ids: dict[int, None] = {}
    unreadable: dict[str, None] = {}
    for word in words:
        if word.isascii() and word.isdigit() and len(word) <= _LONGEST_ID:
            ids[int(word)] = None
        elif word:
            unreadable[word] = None
    return Citations(tuple(ids), tuple(unreadable))


# -- tags -------------------------------------------------------------------------------------


def after_thought(text: str) -> str:
    """The message without its leading thought: what was only thought is no answer.

    A `</think>` without its opening closes a thought that the generation prompt opened. A leading
    `<think>` that is never closed leaves nothing.
    """
    text = text.lstrip()
    start, end = text.find("<think>"), text.find("</think>")
    if start == 0 and end < 0:
        return ""
    leading = end >= 0 and not 0 < start < end
    return text[end + len("</think>") :] if leading else text


def tag_content(text: str, tag: str) -> str | None:
    """Content of the last complete `<tag>...</tag>`, without space around it.

    The last, because a model may speak of a tag in its reasoning before it uses it. It ends where
    it is first closed: one closing tag too many is no part of the answer.
    """
    last = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, last) if last >= 0 else -1
    if start < 0:
        return None
    return text[start + len(tag) + 2 : text.find(f"</{tag}>", start)].strip()


def format_fault(text: str) -> str | None:
    """Why a message is not exactly think, cite, answer, each once and in this order; else None."""
    marks = [mark for tag in FORMAT_TAGS for mark in (f"<{tag}>", f"</{tag}>")]
    for mark in marks:
        if text.count(mark) != 1:
            return f"{mark} must occur exactly once"
    places = [text.find(mark) for mark in marks]
    if places != sorted(places):
        return f"the tags must come in the order {', '.join(FORMAT_TAGS)}, one after the other"
    closed = [0, *(place + len(mark) for place, mark in zip(places, marks, strict=True))][::2]
    opened = [*places[::2], len(text)]
    if any(text[end:start].strip() for end, start in zip(closed, opened, strict=True)):
        return "there is text outside the tags"
    return None


# -- other spellings --------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def accepted_answers(answer: str, aliases: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The answer, its aliases and the other spellings of each, without repetition."""
    given = (answer, *aliases)
    return tuple(dict.fromkeys([*given, *(v for text in given for v in answer_variants(text))]))


def answer_variants(text: str) -> list[str]:
    """Other spellings of the same answer: quotation marks, digits and number words."""
    variants = _quote_variants(text)
    for spelling in (text, *variants):
        variants = [*variants, *_number_variants(spelling)]
    return [variant for variant in dict.fromkeys(variants) if variant != text]


_QUOTED = re.compile(r"``(.+?)''|“([^“”]+)”|\"([^\"]+)\"")


def _quote_variants(text: str) -> list[str]:
    """The answer with bare and with typographic quotation marks.

    MuSiQue's passages write ``so'', often glued to the next word. The official normalisation drops
    those marks but keeps the typographic ones that models like to write.
    """
    if not _QUOTED.search(text):
        return []
    respelled = (_QUOTED.sub(_bare, text), _QUOTED.sub(_curly, text))
    return [" ".join(variant.split()) for variant in respelled]


def _inside(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).strip()


def _bare(found: re.Match[str]) -> str:
    return f" {_inside(found)} "


def _curly(found: re.Match[str]) -> str:
    return f" “{_inside(found)}” "


_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"]
_TEENS += ["seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_SCALES = ("hundred", "thousand", "million", "billion", "trillion")


def _cardinal_word(number: int) -> str:
    if number < 20:
        return (*_UNITS, *_TEENS)[number]
    tens, unit = _TENS[number // 10 - 2], number % 10
    return f"{tens}-{_UNITS[unit]}" if unit else tens


def _ordinal_word(number: int) -> str:
    stem, dash, last = _cardinal_word(number).rpartition("-")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return stem + dash + _IRREGULAR.get(last, regular)


def _ordinal_digits(number: int) -> str:
    special = 10 < number % 100 < 14
    return f"{number}{'th' if special else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _spellings() -> dict[str, tuple[str, ...]]:
    """Each spelling of each number under 100, and the other spellings of the same number."""
    pairs = [(str(n), _cardinal_word(n)) for n in range(100)]
    pairs += [(_ordinal_digits(n), _ordinal_word(n)) for n in range(1, 100)]
    table: dict[str, tuple[str, ...]] = {}
    for digits, word in pairs:
        words = tuple(dict.fromkeys([word, word.replace("-", " ")]))
        table[digits] = words
        table |= {spelling: (digits, *(w for w in words if w != spelling)) for spelling in words}
    return table


_OTHER_SPELLINGS = _spellings()
_NUMERIC = re.compile(r"\d")


def _number_variants(text: str) -> list[str]:
    """The answer with one number under 100 respelled at a time."""
    words = text.split()
    variants = []
    for start in range(len(words)):
        for length in (2, 1):  # "twenty one" is one number, so the pair goes first
            end = start + length
            others = _respelled(words[start:end]) if end <= len(words) else []
            if others and not _part_of_longer_number(words, start, end):
                variants += [" ".join([*words[:start], w, *words[end:]]) for w in others]
                break
    return variants


def _respelled(words: Sequence[str]) -> list[str]:
    """Other spellings of words that are one number, with the punctuation around it kept."""
    before, core, after = _parts(" ".join(words))
    return [f"{before}{other}{after}" for other in _OTHER_SPELLINGS.get(core.lower(), ())]


def _part_of_longer_number(words: Sequence[str], start: int, end: int) -> bool:
    """Whether a neighbour is a number too: `19 90`, `twenty thousand one`. `2 million` is fine."""
    before = words[start - 1 : start]
    after = words[end : end + 1]
    if after and _core(after[0]) in _SCALES:
        after = words[end + 1 : end + 2]
    return any(_is_number(word) for word in (*before, *after))


def _is_number(word: str) -> bool:
    core = _core(word)
    return core in _OTHER_SPELLINGS or core in _SCALES or bool(_NUMERIC.search(core))


def _core(word: str) -> str:
    return _parts(word)[1].lower()


def _parts(text: str) -> tuple[str, str, str]:
    core = text.lstrip("\"'“‘(")
    before = text[: len(text) - len(core)]
    bare = core.rstrip("\"'”’),;:!?.")
    return before, bare, core[len(bare) :]
