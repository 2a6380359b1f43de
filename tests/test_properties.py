"""What must hold for every input a reader can get, tried on inputs that nobody would think of."""

import json
import random
import string
import sys
import unicodedata
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flatline.config import RunConfig, load_config, toml_of
from flatline.errors import ConfigError, DataError, TraceError
from flatline.loopback.guard import Refused, _check_origin, _without_port
from flatline.rollout.toolcalls import parse_hermes, parse_llama
from flatline.tasks.arithmetic import ExpressionError, evaluate, show
from flatline.tasks.base import ToolCall
from flatline.tasks.datasets import parse_specs, slice_bounds
from flatline.tasks.numbers import format_number, parse_number
from flatline.tasks.scoring import parse_citations, tag_content
from flatline.text import visible
from flatline.trace.importers import open_log

sys.path.append(str(Path(__file__).parent.parent / "benchmarks" / "fuzz"))

import targets

few = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
text = st.text(st.characters(codec="utf-8"), max_size=40)
plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), text)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner)
)


@few
@given(name=text.filter(bool), arguments=st.dictionaries(text, values, max_size=4))
def test_every_call_that_json_can_write_is_read_back(name, arguments):
    body = json.dumps({"name": name, "arguments": arguments})
    assume("think>" not in body)  # what is thought is not said, wherever the tag stands
    call = [ToolCall(name=name, arguments=arguments)]
    assert parse_hermes(f"I look.\n<tool_call>\n{body}\n</tool_call>") == call
    assert parse_llama(json.dumps({"name": name, "parameters": arguments})) == call


@st.composite
def expressions(draw, depth=3):
    """An expression, and its value by Python's own arithmetic."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(0, 999))
        return str(number), Fraction(number)
    sign = draw(st.sampled_from("+-*/"))
    (left, a), (right, b) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    if sign == "/" and b == 0:
        sign = "+"
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[sign]
    return f"({left} {sign} {right})", value


@few
@given(expressions())
def test_the_calculator_agrees_with_exact_arithmetic(made):
    expression, value = made
    try:
        assert evaluate(expression) == value
    except ExpressionError as error:
        assert "digits" in str(error)
        return
    assert evaluate(show(value)) == value


@few
@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-1e9, max_value=1e9))
def test_a_number_that_is_written_is_read_as_itself(number):
    assert parse_number(format_number(number)) == number
    assert parse_number(f"{number:,f}") == number
    assert isinstance(parse_number(f" {number:f}. "), Decimal)


@few
@given(
    st.lists(st.integers(0, 10**9 - 1), max_size=6, unique=True), st.sampled_from([", ", ";", " "])
)
def test_citations_come_back_in_their_order(ids, between):
    message = f"<cite>{between.join(f'[{one}]' for one in ids)}</cite>"
    assert parse_citations(tag_content(message, "cite") or "") == (tuple(ids), ())


names = st.text(string.ascii_letters + string.digits + "_-./", min_size=1, max_size=12).filter(
    lambda name: name not in ("dev", "validation", "valid", "train", "test")
)


@few
@given(path=names, config=names, split=names, start=st.integers(0, 50), size=st.integers(1, 50))
def test_a_spec_means_what_it_says(path, config, split, start, size):
    spec = parse_specs(f" {path} ,{config}, {split}[{start}:{start + size}] ")[0]
    assert (spec.path, spec.config, spec.split) == (path, config, split)
    assert slice_bounds(spec, 100) == (start, start + size)
    with pytest.raises(DataError):
        slice_bounds(spec, start + size - 1)


@few
@given(st.text(max_size=60))
def test_text_that_is_made_visible_has_nothing_a_terminal_obeys(written):
    shown = visible(written)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in shown)
    assert not set(shown) & set("\x1b\x00\x9b\u202e\u2066\ud800") and visible(shown) == shown


@few
@given(model=text, name=text, rate=st.floats(0, 1e3), seed=st.integers(0, 2**32 - 1))
def test_settings_that_are_written_are_read_as_themselves(tmp_path, model, name, rate, seed):
    config = replace(RunConfig(), model=model, run_name=name, learning_rate=rate, seed=seed)
    (tmp_path / "run.toml").write_text(toml_of(config.to_dict()), encoding="utf-8", newline="")
    assert load_config(tmp_path / "run.toml") == config


cells = st.one_of(st.floats(), st.integers(-5, 10**12), text, st.none(), st.booleans(), values)
rows = st.lists(
    st.dictionaries(st.sampled_from(["step", "reward", "kl", "loss", "Step", "x/y"]) | text, cells),
    max_size=6,
)


@few
@given(rows)
def test_every_log_is_a_trace_with_steps_in_order_or_an_error_for_the_user(tmp_path, logged):
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in logged))
    try:
        found = open_log(tmp_path / "log.jsonl")
    except TraceError as error:
        assert "log.jsonl" in str(error)
        return
    steps = found.steps["step"].tolist()
    assert steps == sorted(set(steps)) and len(steps) <= len(logged)


@few
@given(st.text(st.characters(max_codepoint=255), max_size=30), st.sampled_from(["", ":80", ":x"]))
def test_only_the_names_of_this_machine_pass_for_it(said, port):
    known = {"127.0.0.1", "localhost", "[::1]"}
    for host in (said + port, f"127.0.0.1{said}", f"{said}localhost"):
        if _without_port(host) in known:
            assert host.lower().startswith(tuple(known))
            assert host[len(_without_port(host)) :][:1] in ("", ":")


@few
@given(text)
def test_no_origin_but_its_own_may_ask(origin):
    class Headers(dict):
        def getlist(self, name):
            return [self[name]] if name in self else []

    try:
        _check_origin(Headers(host="127.0.0.1:8321", origin=origin), "GET")
    except Refused as error:
        assert error.status == 403
    else:
        assert origin.partition("://")[2].split("/")[0] == "127.0.0.1:8321"


@pytest.mark.parametrize("name", targets.TARGETS)
def test_every_fuzzed_reader_survives_its_seeds_spoiled_in_a_hundred_ways(name):
    die = random.Random(name)
    seeds = targets.SEEDS[name]()
    words = [word.encode() for word in targets.WORDS.get(name, ())]
    try:
        for _ in range(100):
            targets.survive(name, spoiled(die.choice(seeds), die, words))
    finally:
        targets.clean_up()


def spoiled(data: bytes, die: random.Random, words: list[bytes]) -> bytes:
    """A few bytes changed, cut out, repeated, or words put in."""
    for _ in range(die.randint(1, 4)):
        at, end = sorted(die.randrange(len(data) + 1) for _ in "ab")
        put = die.choice([b"", die.randbytes(3), data[at:end] * 2, b"[" * 500, *words])
        data = data[:at] + put + data[die.choice([at, min(at + 1, len(data)), end]) :]
    return data[:20_000]


def test_a_config_error_names_the_value_for_every_field_of_another_type():
    for name in RunConfig().to_dict():
        with pytest.raises(ConfigError, match=r"cannot be used|no run has"):
            RunConfig(**{name: object()})
