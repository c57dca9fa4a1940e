"""Tests what a grammar lets through, where it may end, and what is refused: on the demo's tokenizer and on small ones."""

import gc
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.grammar_spec import GrammarSpec
from mlx_bulk.runner.grammar import grammars as grammars_module
from mlx_bulk.runner.grammar.finished_text import schema_check
from mlx_bulk.runner.grammar.grammars import Grammars, grammars_of

from ...checkpoints import EOS, VOCABULARY
from ..support.guided import ENDS, WORDS, allowed, choice, demo_grammars, follow, schema, takes
from ..support.small_tokenizers import IM_START, demo, metaspace, sentencepiece_like

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FREE_TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (schema(OBJECT), '{"a": 42}', '{"a": "x"}'),
        (schema(OBJECT), '{\n  "a": 1\n}', '{"b": 1}'),
        (schema({"enum": ["é🙂", 2, None]}), "null", "3"),
        (GrammarSpec("regex", r"\d{2}-[a-c]+"), "12-abc", "1-a"),
        (GrammarSpec("regex", "a|"), "", "b"),
        (choice("é", "🙂 x", 'a "quoted"\nline', "", "ab"), 'a "quoted"\nline', "a"),
        (choice("yes", "no"), "no", "maybe"),
        (GrammarSpec("grammar", 'start: "a" b+\nb: "b"'), "abb", "a"),
    ],
)
def test_a_completion_is_a_text_of_the_grammar(spec: GrammarSpec, right: str, wrong: str) -> None:
    assert takes(spec, right)
    assert not takes(spec, wrong)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), min_size=1, max_size=4))
def test_each_choice_can_be_made(texts: list[str]) -> None:
    assert all(takes(choice(*texts), text) for text in texts)


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
@pytest.mark.parametrize("around", [("", ""), ("a", "b"), ("x ", "")])
def test_a_text_that_is_forced_may_have_the_name_of_a_mark(mark: str, around: tuple[str, str]) -> None:
    text = mark.join(around)
    for spec, whole in ((choice(text), text), (GrammarSpec("regex", re.escape(text)), text), (schema({"const": text}), json.dumps(text))):
        guide, ids = demo_grammars().compiled(spec).start(), list[int]()
        while not guide.complete:
            found = allowed(guide)
            assert found, guide.error
            ids.append(found[0])
            guide.push(found[0])
        assert guide.error is None
        assert demo().decode(np.array(ids, np.int32)) == whole
        assert not {IM_START, *ENDS} & set(ids)


def test_a_grammar_may_ask_for_a_mark_by_its_name() -> None:
    guide = demo_grammars().compiled(GrammarSpec("grammar", 'start: "a" <|im_start|> "b"')).start()
    assert follow(guide, "a")
    assert allowed(guide) == [IM_START]


def test_ends_are_allowed_exactly_where_the_text_is_whole() -> None:
    guide = demo_grammars().compiled(schema(OBJECT), (7,)).start()
    for token in demo().encode_text('{"a": 42').ids.tolist():
        assert not {*ENDS, 7} & set(allowed(guide))
        guide.push(token)
    assert guide.complete is False


def test_a_grammar_that_a_stop_id_leaves_no_way_through_is_an_error() -> None:
    (brace,) = demo().encode_text("]").ids.tolist()
    guide = demo_grammars().compiled(schema({"const": [True]}, whitespace="compact"), (brace,)).start()
    assert follow(guide, "[true")
    assert allowed(guide) == []
    assert guide.error is not None
    assert "no token is allowed here but those that end" in guide.error


def test_a_stop_id_ends_where_eos_may() -> None:
    guide = demo_grammars().compiled(choice("a", "ab"), (7,)).start()
    assert not {7, *ENDS} & set(allowed(guide))
    follow(guide, "a")
    assert {7, *ENDS} < set(allowed(guide))
    guide.push(7)
    assert guide.complete is True
    assert guide.error is None


def test_a_whole_value_leaves_the_ends_alone() -> None:
    guide = demo_grammars().compiled(schema({"type": "boolean"})).start()
    assert follow(guide, "true")
    assert set(allowed(guide)) == ENDS


def test_no_id_beyond_the_tokenizer_and_no_special_one_is_ever_allowed() -> None:
    wide = VOCABULARY + 100
    grammars = Grammars(demo(), wide, ENDS)
    guide, words = grammars.compiled(schema(FREE_TEXT)).start(), -(-wide // 32)
    assert follow(guide, '"', words=words)
    found = set(allowed(guide, words))
    assert max(found) < VOCABULARY
    assert not found & {IM_START, *ENDS}


@pytest.mark.parametrize(
    ("whitespace", "right", "wrong"),
    [
        ("bounded", ["[1, 2]", "[1,2]", "[\n  1,\n  2\n]"], ["[1,          2]", "[1,\t2]"]),
        ("flexible", ["[1, 2]", "[1,          2]", "[1,\t2]"], []),
        ("compact", ["[1,2]"], ["[1, 2]"]),
        (" ", ["[1, 2]"], ["[1,  2]"]),
    ],
)
def test_blanks_between_parts(whitespace: str, right: list[str], wrong: list[str]) -> None:
    numbers = schema({"type": "array", "items": {"type": "integer"}}, whitespace=whitespace)
    assert [takes(numbers, text) for text in right] == [True] * len(right)
    assert [takes(numbers, text) for text in wrong] == [False] * len(wrong)


def test_options_inside_a_schema_change_nothing() -> None:
    loose = {"x-guidance": {"lenient": True, "whitespace_flexible": True}, "type": "array", "items": {"type": "integer"}}
    assert not takes(schema(loose), "[1,          2]")
    with pytest.raises(RowError, match="not"):
        demo_grammars().compiled(schema({"x-guidance": {"lenient": True}, "properties": {"a": {"not": {}}}}))
    a_property = {"type": "object", "properties": {"x-guidance": {"type": "integer"}}, "required": ["x-guidance"]}
    assert takes(schema(a_property), '{"x-guidance": 1}')


def test_a_tokenizer_that_puts_a_blank_first_may_do_so() -> None:
    for tokenizer in (sentencepiece_like(bpe=True), sentencepiece_like(bpe=False), metaspace()):
        size, eos = tokenizer.size, tokenizer.eos
        words, grammars = -(-size // 32), Grammars(tokenizer, size, eos)
        for spec in (choice("the king", "a"), GrammarSpec("regex", "the (king|a)"), GrammarSpec("grammar", 'start: "the king"')):
            guide = grammars.compiled(spec).start()
            assert follow(guide, "the king", tokenizer, words)
            assert guide.complete


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (GrammarSpec("regex", "(?=a)b"), "regular expression cannot be enforced: invalid regex: look-around"),
        (GrammarSpec("regex", r"(a)\1"), "backreferences are not supported"),
        (schema({"not": {"type": "string"}}), 'Unimplemented keys: \\["not"\\]; change it, or set structured.unsupported: relax'),
        (schema({"type": "object", "properties": {"a": {"uniqueItems": True, "type": "array"}}}), "uniqueItems"),
        (schema({"$ref": "#"}), r"no text fulfils this JSON schema \(a \$ref leads back to itself"),
        (schema({"type": "strin"}), "Invalid type: strin; change it$"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "; change it$"),
        (schema({"type": "array"}, whitespace="(?=a)"), "look-around"),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf constraints are not supported; change it"),
        (GrammarSpec("grammar", "start: other"), 'unknown name: "other"'),
        (GrammarSpec("grammar", 'start: "a" <think>'), 'unknown special token: "<think>"'),
        (GrammarSpec("regex", "a" * 4_000_001), "has 4.0 MB of text; expected at most 4 MB"),
        (GrammarSpec("json_schema", '{"items":' * 500 + "{}" + "}" * 500), "recursion limit exceeded"),
        (schema({"$ref": "https://example.com/schema.json"}), "example.com"),
    ],
)
def test_what_cannot_be_compiled_is_an_error_of_the_row(spec: GrammarSpec, words: str) -> None:
    with pytest.raises(RowError, match=words) as caught:
        demo_grammars().compiled(spec)
    assert caught.value.stage == "grammar"
    assert "\n" not in str(caught.value)
    assert "<state>" not in str(caught.value)


def test_a_grammar_that_nobody_can_use_is_refused_before_the_tokenizer_is_read() -> None:
    grammars = Grammars(demo(), VOCABULARY, ENDS)
    assert grammars.refusal(schema(OBJECT)) is None
    assert "look-around" in str(grammars.refusal(GrammarSpec("regex", "(?=a)")))
    assert "no EOS" in str(Grammars(demo(), VOCABULARY, frozenset()).refusal(schema(OBJECT)))
    assert "_tokenizer" not in vars(grammars)


def test_a_slow_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(demo()), "fast", False)
    with pytest.raises(RowError, match="slow one"):
        Grammars(demo(), VOCABULARY, ENDS).compiled(schema(OBJECT))


def test_a_distinct_grammar_is_compiled_once() -> None:
    grammars = grammars_of(demo(), VOCABULARY, frozenset([EOS]))
    assert grammars_of(demo(), VOCABULARY, frozenset([EOS])) is grammars
    before = grammars.compilations
    for _ in range(100):
        assert takes(schema(OBJECT), '{"a": 1}', grammars)
        assert takes(choice("a", "b"), "b", grammars)
    assert grammars.compilations - before == 2


def test_grammars_that_are_not_kept_are_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "KEPT", 2)
    grammars = Grammars(demo(), VOCABULARY, ENDS)
    first, *_ = (grammars.compiled(choice(text)) for text in ("a", "b", "c"))
    assert grammars.compilations == 3
    assert follow(first.start(), "a")
    assert grammars.compilations == 4


def test_a_matcher_is_used_again_from_the_beginning() -> None:
    grammars = Grammars(demo(), VOCABULARY, ENDS)
    spec = schema(OBJECT)
    guide = grammars.compiled(spec).start()
    follow(guide, '{"a": 1')
    del guide
    gc.collect()
    assert len(grammars.grammar(spec).spare) == 1
    several = [grammars.compiled(spec).start() for _ in range(3)]
    assert [follow(guide, '{"a": 1}') for guide in several] == [True] * 3


def test_a_matcher_that_fails_is_an_error_and_is_not_used_again() -> None:
    grammars = Grammars(demo(), VOCABULARY, ENDS)
    spec = choice("a")
    guide = grammars.compiled(spec).start()
    guide.push(demo().encode_text("b").ids.tolist()[0])
    assert guide.error
    assert "\n" not in guide.error
    assert guide.complete is False
    del guide
    gc.collect()
    assert grammars.grammar(spec).spare == []


def relaxed_takes(value: dict[str, Any], text: str) -> bool | None:
    guide = demo_grammars().compiled(schema(value, relaxed=True)).start()
    return guide.complete if follow(guide, text) else None


def test_what_a_relaxed_grammar_leaves_out_is_checked_in_the_finished_text() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert relaxed_takes(numbers, "[1, 2]") is True
    assert relaxed_takes(numbers, "[1, 1]") is False
    assert relaxed_takes(numbers, '["a"]') is None
    assert relaxed_takes({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, '{"a": "x"}') is False


def test_a_check_of_the_finished_text_fetches_nothing() -> None:
    check = schema_check(schema({"not": {"$ref": "https://example.com/x"}}))
    assert check("1") is False


def test_the_text_of_a_schema_keeps_the_order_of_its_properties() -> None:
    ordered = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a", "b"]}
    assert takes(GrammarSpec("json_schema", json.dumps(ordered)), '{"b": 1, "a": 2}')
    assert not takes(GrammarSpec("json_schema", json.dumps(ordered)), '{"a": 2, "b": 1}')


def test_masks_are_written_into_the_row_alone() -> None:
    bits = np.full((3, WORDS), 5, np.int32)
    demo_grammars().compiled(choice("a")).start().fill(bits[1])
    assert (bits[[0, 2]] == 5).all()
    assert (bits[1] != 5).any()
