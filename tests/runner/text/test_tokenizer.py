"""Tests text to ids and back, on the demo's byte-level tokenizer and on small ones: offsets, BOS, EOS, templates."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.core.errors import ModelError, RowError
from mlx_bulk.runner.text.token_offsets import byte_level_pieces, piece_starts
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...checkpoints import BOS, DEMO, EOS, VOCABULARY, copy_tokenizer
from ..support.small_tokenizers import GPT2_BYTES, IM_START, demo, demo_backend, metaspace, sentencepiece_like, trimming

TEXTS = [
    "",
    "a",
    "The king is dead.",
    "café, 東京 and 🙂🙂",
    "two\nlines\t and  spaces ",
    "e\u0301 🇫🇷 \u2028 ﷽",
    "<|im_start|>user",
]


def char_starts(raw: bytes) -> list[int]:
    """For each byte, the code point that it belongs to when ``raw`` is decoded with U+FFFD for each broken sequence."""
    starts: list[int] = []
    at = 0
    while len(starts) < len(raw):
        rest = raw[len(starts) :]
        try:
            good, bad = rest.decode(), 0
        except UnicodeDecodeError as error:
            good, bad = rest[: error.start].decode(), error.end - error.start
        for char in good:
            starts += [at] * len(char.encode())
            at += 1
        starts += [at] * bad
        at += bool(bad)
    return starts


@given(st.lists(st.none() | st.text(st.sampled_from(GPT2_BYTES)), max_size=8), st.sampled_from(["", "two words", "a\x80", "東京"]))
def test_a_vocabulary_s_tokens_have_their_own_bytes(tokens: list[str | None], plain: str):
    own = [bytes(map(GPT2_BYTES.index, token or "")) for token in tokens]
    assert byte_level_pieces(tokens) == own
    assert byte_level_pieces([*tokens, plain]) == [*own, plain.encode()]


def pieces_of(ids: list[int]) -> list[bytes]:
    """The bytes of each of the demo's tokens; special ones have none."""
    of = {char: byte for byte, char in enumerate(GPT2_BYTES)}
    return [b"" if i in (BOS, IM_START, EOS) else bytes(of[char] for char in demo_backend().id_to_token(i) or "") for i in ids]


@settings(deadline=None)  # the first example loads the tokenizer
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=30))
def test_offsets_of_any_bytes_are_those_of_the_decoded_text(ids: list[int]):
    tokenizer, found = demo(), np.array(ids, np.int32)
    pieces = pieces_of(ids)
    raw = b"".join(pieces)
    text = tokenizer.decode(found)
    assert text == raw.decode(errors="replace")
    starts = [*char_starts(raw), len(text)]
    before = np.cumsum([0, *map(len, pieces)])[:-1]
    assert tokenizer.offsets(found).tolist() == [starts[at] for at in before]


def test_half_a_surrogate_is_two_broken_characters():
    """Python's incremental decoder waits for a third byte here; a decoder of the whole text does not."""
    assert b"\xed\xa1".decode(errors="replace") == "\ufffd\ufffd"
    assert piece_starts([b"\xed", b"\xa1", b"", b"a"]).tolist() == [0, 1, 2, 2]
    assert piece_starts([]).tolist() == []


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_offsets_are_those_of_the_text(text: str):
    tokenizer = demo()
    prompt = tokenizer.encode(text)
    assert prompt.ids[0] == BOS
    assert prompt.offsets[0] == 0
    assert prompt.offsets.dtype == prompt.ids.dtype == np.int32
    if "<|" not in text:  # else a special token stands in the text, which decode leaves out
        assert tokenizer.decode(prompt.ids) == text
        assert prompt.offsets.tolist() == tokenizer.offsets(prompt.ids).tolist()


def test_a_special_token_in_the_text_takes_its_room():
    prompt = demo().encode("ab<|im_start|>cd")
    at = prompt.ids.tolist().index(IM_START)
    assert prompt.offsets[at] == 2
    assert prompt.offsets[at + 1] == 2 + len("<|im_start|>")


def test_special_tokens_of_a_completion_take_no_room():
    tokenizer = demo()
    (a,), (b,) = (tokenizer.encode(char).ids[1:] for char in "xy")
    ids = np.array([a, IM_START, b, EOS], np.int32)
    assert tokenizer.decode(ids) == "xy"
    assert tokenizer.offsets(ids).tolist() == [0, 1, 1, 2]


def test_offsets_of_a_tokenizer_that_trims_them_count_the_spaces():
    tokenizer = trimming()
    prompt = tokenizer.encode("a k.\n é ")
    assert prompt.text[: prompt.offsets[-1]] == "a k.\n é"
    #                                  <s> a Ġk .  \n  space é é space
    assert prompt.offsets.tolist() == [0, 0, 1, 3, 4, 5, 6, 6, 7]


@pytest.mark.parametrize("tokenizer", [sentencepiece_like(bpe=True), sentencepiece_like(bpe=False), metaspace()])
@pytest.mark.parametrize("text", ["the king", "theé  eat", "é 東京🙂 the", " the", "", "🙂🙂🙂🙂🙂 the 東 京"])
def test_offsets_of_sentencepiece_tokens(tokenizer: Tokenizer, text: str):
    prompt = tokenizer.encode(text)
    ids = prompt.ids
    shown = tokenizer.decode(ids)
    beginnings = [tokenizer.decode(ids[:i]) for i in range(len(ids))]
    # A beginning that ends inside a character has a U+FFFD there: such a token shares its character's start.
    whole = [len(beginning) if shown.startswith(beginning) else 0 for beginning in beginnings]
    assert tokenizer.offsets(ids).tolist() == np.maximum.accumulate(whole).tolist()


def test_broken_bytes_of_a_byte_fallback_tokenizer_are_a_character_each():
    tokenizer = sentencepiece_like(bpe=True)
    byte = {value: 3 + value for value in range(256)}
    a = tokenizer.encode("a").ids[-1]
    ids = np.array([a, byte[0xE6], byte[0x9D], a, byte[0xC3], byte[0xA9], a], np.int32)
    assert tokenizer.decode(ids) == "a\ufffd\ufffdaéa"
    assert tokenizer.offsets(ids).tolist() == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("tokenizer", [demo(), sentencepiece_like(bpe=True)])
def test_ids_beyond_the_tokenizer_are_no_text(tokenizer: Tokenizer):
    # A model's vocabulary may be padded: such an id can be drawn, if hardly ever.
    a = int(tokenizer.encode("a").ids[-1])
    ids = np.array([a, tokenizer.size + 7, a], np.int32)
    assert tokenizer.decode(ids) == "aa"
    assert tokenizer.offsets(ids).tolist() == [0, 1, 1]


# ------------------------------------------------------------------------------------------------ BOS, EOS, templates


def test_raw_text_gets_one_bos_even_if_it_brings_its_own():
    tokenizer = demo()
    plain = tokenizer.encode("Hello")
    brought = tokenizer.encode("<|endoftext|>Hello")
    assert plain.ids.tolist() == brought.ids.tolist()
    assert plain.ids.tolist().count(BOS) == 1
    assert brought.offsets[:2].tolist() == [0, len("<|endoftext|>")]


def test_a_chat_template_that_writes_bos_gives_one():
    prompt = demo().encode_chat([{"role": "user", "content": "Hi"}], "Sure")
    assert prompt.text == "<|endoftext|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure"
    assert prompt.ids.tolist().count(BOS) == 1
    assert prompt.ids[0] == BOS
    assert prompt.offsets[1] == len("<|endoftext|>")


def test_a_chat_with_half_of_a_surrogate_pair_fails_its_row():
    with pytest.raises(RowError, match=r"the chat template refuses the messages: the text holds half of a surrogate pair"):
        demo().encode_chat([{"role": "user", "content": "Hi \ud800"}], "")


def test_a_template_that_refuses_messages_fails_the_row(tmp_path: Path):
    strict = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user comes first') }}{% endif %}x"
    tokenizer = load_tokenizer(DEMO, strict, {}, trust_remote_code=False)
    assert tokenizer.encode_chat([{"role": "user", "content": "Hi"}], "").text == "x"
    with pytest.raises(RowError, match="the chat template refuses the messages: user comes first") as caught:
        tokenizer.encode_chat([{"role": "assistant", "content": "Hi"}], "")
    assert caught.value.stage == "template"


def test_template_arguments_reach_the_template():
    tokenizer = load_tokenizer(DEMO, "{{ 'thinks' if enable_thinking else 'answers' }}", {"enable_thinking": True}, trust_remote_code=False)
    assert tokenizer.encode_chat([{"role": "user", "content": ""}], "").text == "thinks"


def test_a_template_is_read_from_its_file_or_refused(tmp_path: Path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages[0].content }}!")
    assert load_tokenizer(DEMO, str(path), {}, trust_remote_code=False).chat_template == "{{ messages[0].content }}!"
    with pytest.raises(ConfigError, match=r"prompt\.chat_template: .*gone\.jinja is neither a readable file nor a template"):
        load_tokenizer(DEMO, str(tmp_path / "gone.jinja"), {}, trust_remote_code=False)
    with pytest.raises(ConfigError, match=r"prompt\.chat_template, line 2: the template cannot be parsed: "):
        load_tokenizer(DEMO, "{{ messages }}\n{% if %}", {}, trust_remote_code=False)


def test_an_architecture_names_its_parser_of_tool_calls(tmp_path: Path):
    """As mlx-lm does for checkpoints that name none."""
    copy_tokenizer(tmp_path)
    for model_type, parser in [("llama", None), ("muse_spark", "muse_spark")]:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert load_tokenizer(tmp_path, None, {}, False).hf.init_kwargs.get("tool_parser_type") == parser


def test_tokenizers_that_cannot_be_loaded(tmp_path: Path):
    with pytest.raises(ModelError, match=r"holds no tokenizer; put the model's tokenizer files beside its weights"):
        load_tokenizer(tmp_path, None, {}, trust_remote_code=False)
    copy_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=f"model.path: the tokenizer in {tmp_path} cannot be loaded: "):
        load_tokenizer(tmp_path, None, {}, trust_remote_code=False)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        ModelError, match=r"cannot be loaded: it has no vocabulary; put the model's tokenizer\.json \(or tokenizer\.model, or"
    ):
        load_tokenizer(tmp_path, None, {}, trust_remote_code=False)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"model_type": "gemma2", "query_pre_attn_scalar": 16.0},
            "Validation error for field 'query_pre_attn_scalar': TypeError: .* expected int, got float \\(value: 16.0\\)",
        ),
        ({"model_type": "llama", "num_attention_heads": 3, "hidden_size": 64}, ".*The hidden size"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}}, ".*Missing required keys in `rope_parameters`"),
    ],
)
def test_a_config_that_transformers_refuses_is_named(tmp_path: Path, config: dict[str, object], reason: str):
    """It reads the config before the tokenizer, which is not at fault."""
    copy_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"^model.path: {tmp_path}/config.json is refused by transformers: {reason}.*; correct it$"):
        load_tokenizer(tmp_path, None, {}, trust_remote_code=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of mlx-lm alone"}))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=f"model.path: the tokenizer in {tmp_path} cannot be loaded: "):
        load_tokenizer(tmp_path, None, {}, trust_remote_code=False)


def test_eos_bos_and_size():
    tokenizer = demo()
    assert (tokenizer.eos, tokenizer.bos, tokenizer.size) == (frozenset([EOS]), BOS, VOCABULARY)
    assert tokenizer.has_chat_template


def test_a_base_model_has_no_chat_template(tmp_path: Path):
    copy_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert not load_tokenizer(tmp_path, None, {}, trust_remote_code=False).has_chat_template
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": None, "eos_token": None}))
    bare = load_tokenizer(tmp_path, "{{ messages }}", {}, trust_remote_code=False)
    assert bare.has_chat_template
    assert (bare.bos, bare.eos) == (None, frozenset())


@pytest.mark.parametrize("make", [demo, lambda: sentencepiece_like(bpe=True), lambda: sentencepiece_like(bpe=False), metaspace, trimming])
def test_the_bytes_of_a_texts_tokens_put_together_are_the_text(make: Callable[[], Tokenizer]):
    tokenizer = make()
    text = "the king é 東 k."
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode_text(text).ids.tolist()]
    assert b"".join(pieces).decode().removeprefix(" ") == text  # some put a space before a text's first word
    assert all(pieces)


def test_tokens_of_no_text_have_bytes_too():
    assert demo().token_bytes(EOS) == b"<|im_end|>"
    assert sentencepiece_like(bpe=True).token_bytes(2) == b"</s>"
    assert sentencepiece_like(bpe=True).token_bytes(3 + 0xE6) == b"\xe6"
    assert demo().token_bytes(10**6) == metaspace().token_bytes(10**6) == b""  # a model's vocabulary may be wider


@pytest.mark.parametrize("tokenizer", [demo(), sentencepiece_like(bpe=True), sentencepiece_like(bpe=False), metaspace(), trimming()])
def test_a_spelling_is_the_text_with_its_special_tokens(tokenizer: Tokenizer):
    special = next(iter(tokenizer.special))
    plain = tokenizer.encode_text("the king é.").ids
    ids = np.concatenate([plain, [special], plain]).astype(np.int32)
    text, starts = tokenizer.spelled(ids)
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    assert "".join(piece for piece, token in zip(pieces, ids, strict=True) if token not in tokenizer.special) == tokenizer.decode(ids)
    assert pieces[len(plain)].strip() == tokenizer.hf.convert_ids_to_tokens(special)
