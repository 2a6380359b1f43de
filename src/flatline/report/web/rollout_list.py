"""The rollouts of a run, filtered and in pages. What an address asks for is only ever a parameter
of the SQL, never a part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow.compute as pc

from flatline.diagnosis.report import Report
from flatline.errors import ConfigError
from flatline.text import shortened
from flatline.trace import Trace

PAGE = 50
"""Rollouts on a page."""
ENDING = 120
"""Characters of a completion that the list shows: its end, where the answer is."""
FILTERS: dict[str, tuple[str, type, str]] = {
    "from": ("step >= ?", int, "step from"),
    "to": ("step <= ?", int, "step to"),
    "group": ('"group" = ?', int, "group"),
    "least": ("reward >= ?", float, "reward from"),
    "most": ("reward <= ?", float, "reward to"),
    "finish": ("finish = ?", str, "finish"),
    "prompt": ("prompt_id = ?", str, "prompt"),
}
"""Key in the address -> condition, type and label."""
ORDERS = {
    "step": ("step, rollout", "by step"),
    "reward": ("reward, step, rollout", "lowest reward first"),
    "best": ("reward DESC NULLS LAST, step, rollout", "highest reward first"),
    "advantage": ("abs(advantage) DESC NULLS LAST, step, rollout", "largest advantage first"),
    "length": ("completion_tokens DESC NULLS LAST, step, rollout", "longest first"),
}
"""Key in the address -> order and label."""
_COLUMNS = (
    'step, rollout, "group", prompt_id, hops, reward, advantage, finish, tool_calls, '
    "completion_tokens, trained_tokens"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an address asks for."""

    filters: dict[str, int | float | str]
    """Value of every filter that is set."""
    hypothesis: str
    """Code of the hypothesis whose evidence is wanted, or nothing."""
    order: str
    """A key of `ORDERS`."""
    page: int
    """From 1."""

    def address(self, **changed: Any) -> str:
        """The query part of an address, with these things changed."""
        order = "" if self.order == "step" else self.order
        said = {**self.filters, "hypothesis": self.hypothesis, "order": order, **changed}
        return urlencode({key: value for key, value in said.items() if value not in ("", None)})


def asked(query: Mapping[str, str]) -> Asked:
    """An address, checked."""
    filters = {
        key: _value(key, query[key].strip(), kind)
        for key, (_, kind, _) in FILTERS.items()
        if query.get(key, "").strip()
    }
    order = query.get("order") or "step"
    if order not in ORDERS:
        raise ConfigError(f"There is no order {order!r}.\nThere are {', '.join(ORDERS)}.")
    page = _value("page", query.get("page") or "1", int)
    return Asked(
        filters=filters,
        hypothesis=query.get("hypothesis", "").strip().upper(),
        order=order,
        page=max(int(page), 1),
    )


def listed(trace: Trace, report: Report | None, want: Asked) -> dict[str, Any]:
    """One page of the rollouts, how many there are, and what was asked, on a page that exists."""
    conditions = [FILTERS[key][0] for key in want.filters]
    parameters: list[Any] = list(want.filters.values())
    if want.hypothesis:
        places = _evidence(report, want.hypothesis)
        conditions.append("(step, rollout) IN (SELECT unnest(?::INT[]), unnest(?::INT[]))")
        parameters += [[step for step, _ in places], [rollout for _, rollout in places]]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    counted = trace.query(f"SELECT count(*) AS total FROM rollouts {where}", parameters)
    total = counted.to_pylist()[0]["total"]
    pages = -(-total // PAGE)
    want = replace(want, page=min(want.page, max(pages, 1)))
    found = trace.query(
        f"SELECT {_COLUMNS} FROM rollouts {where} "
        f"ORDER BY {ORDERS[want.order][0]} LIMIT {PAGE} OFFSET ?",
        [*parameters, (want.page - 1) * PAGE],
    ).to_pylist()
    _add_endings(trace, found)
    return {"rows": found, "total": total, "pages": pages, "asked": want}


def finishes(trace: Trace) -> list[str]:
    """How rollouts of this run ended."""
    return sorted(pc.unique(trace.rollouts.arrow("finish")).drop_null().to_pylist())


def codes(report: Report | None) -> list[tuple[str, str]]:
    """Hypotheses whose evidence names rollouts."""
    found = report.findings if report else ()
    return [(one.hypothesis, one.name) for one in found if _places(one.evidence)]


def _evidence(report: Report | None, code: str) -> list[tuple[int, int]]:
    findings = report.findings if report else ()
    return [place for one in findings if one.hypothesis == code for place in _places(one.evidence)]


def _places(evidence: Any) -> list[tuple[int, int]]:
    named = [(one.step, one.rollout) for one in evidence]
    return [(step, number) for step, number in named if step is not None and number is not None]


def _value(key: str, text: str, kind: type) -> Any:
    try:
        value = kind(text)
    except ValueError as error:
        raise ConfigError(f"{key}={text!r} is not a number.\nClear the field.") from error
    if kind is int and abs(value) >= 2**31:
        raise ConfigError(f"{key}={text!r} is too large.\nClear the field.")
    return value


def _add_endings(trace: Trace, rows: list[dict[str, Any]]) -> None:
    """The end of every completion: read for these rows only, since texts are large."""
    if not rows:
        return
    step, rollout = trace.rollouts["step"], trace.rollouts["rollout"]
    keys = step.astype(np.int64) * 2**32 + rollout.astype(np.int64)
    order = np.argsort(keys, kind="stable")
    wanted = np.array([row["step"] * 2**32 + row["rollout"] for row in rows])
    at = order[np.searchsorted(keys[order], wanted)]
    rising = np.argsort(at, kind="stable")
    texts = trace.tables["rollouts"].gather("completion", at[rising]).to_pylist()
    for place, text in zip(rising, texts, strict=True):
        ending = " ".join((text or "")[-4 * ENDING :].split())
        rows[place]["ending"] = ending if len(ending) <= ENDING else f"…{ending[-ENDING:]}"
        rows[place]["prompt_id"] = shortened(rows[place]["prompt_id"] or "", limit=40)
