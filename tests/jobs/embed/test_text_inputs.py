"""Tests texts as pooling models read them: prompts, special tokens, cuts, lower case."""

import pytest
from mlx_bulk.jobs.embed.text_inputs import TextInputs
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.tokenizer import Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", *"abcdefghij", "A", "É", "é"]
CLS, SEP, A = 2, 3, WORDS.index("a")


def tokenizer(*, around: bool = True) -> Tokenizer:
    """A tokenizer of words: with [CLS] and [SEP] around a text, and a limit and pads of its own, as MiniLM's; or with nothing."""
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.normalizer = normalizers.NFC()
    if around:
        backend.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", CLS), ("[SEP]", SEP)]
        )
    backend.enable_truncation(7)
    backend.enable_padding(length=9)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **names))


def ids(text: str, inputs: TextInputs) -> list[int]:
    return inputs.encode(text)[0].ids.tolist()


def test_neither_pads_nor_a_limit_of_the_tokenizers_file_count():
    inputs = TextInputs(tokenizer())
    assert ids("a b c d e f g h", inputs) == [CLS, *range(A, A + 8), SEP]
    assert ids("", inputs) == [CLS, SEP]
    assert ids("[PAD] [SEP]", inputs) == [CLS, 0, SEP, SEP]


def test_special_tokens_stay_where_a_text_is_cut():
    right, left = (TextInputs(tokenizer(), max_length=5, too_long=side) for side in ("truncate_right", "truncate_left"))
    assert ids("a b c d e f g h", right) == [CLS, A, A + 1, A + 2, SEP]
    assert ids("a b c d e f g h", left) == [CLS, A + 5, A + 6, A + 7, SEP]
    assert [right.encode(text)[1] for text in ("a b c", "a b c d")] == [False, True]
    with pytest.raises(RowError, match=r"the text has 6 tokens, and the model takes 5; shorten it, or set embed\.too_long"):
        TextInputs(tokenizer(), max_length=5, too_long="error").encode("a b c d")
    with pytest.raises(RowError, match=r"6 tokens, and embed\.max_length is 5; raise it, shorten the text, or set embed\.too_long"):
        TextInputs(tokenizer(), max_length=5, too_long="error", own_length=True).encode("a b c d")


def test_a_tokenizer_without_special_tokens_has_nothing_to_embed_in_an_empty_text():
    inputs = TextInputs(tokenizer(around=False), max_length=2)
    assert inputs.special_tokens == (0, 0)
    assert ids("a b c", inputs) == [A, A + 1]
    with pytest.raises(RowError, match="the text is empty"):
        inputs.encode("")


def test_a_prompt_stands_before_the_text_and_may_be_left_out_of_pooling():
    counted, not_counted = (TextInputs(tokenizer(), prompt="query: ", pooled_prompt=counts) for counts in (True, False))
    assert counted.encode("a")[0].start == 0
    found = not_counted.encode("a")[0]
    assert found.ids.tolist() == [CLS, 4, 5, A, SEP]
    assert found.start == 3  # [CLS] query : as sentence-transformers counts, which leaves out the [SEP] behind the prompt alone
    with pytest.raises(RowError, match="nothing is left to pool: the prompt takes 3 of the 3 tokens"):
        TextInputs(tokenizer(), prompt="query: ", pooled_prompt=False, max_length=3).encode("a")


def test_lower_case_spares_special_tokens():
    assert ids("A É [SEP]", TextInputs(tokenizer())) == [CLS, WORDS.index("A"), WORDS.index("É"), SEP, SEP]
    assert ids("A É [SEP]", TextInputs(tokenizer(), lowercase=True)) == [CLS, A, WORDS.index("é"), SEP, SEP]
