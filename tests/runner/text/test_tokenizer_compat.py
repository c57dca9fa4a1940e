"""Tests the comparison of two tokenizers: the first difference is named; tokens that scoring does not use may differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...checkpoints import copy_tokenizer
from ..support.small_tokenizers import demo, sentencepiece_like

Edit = Callable[[dict[str, Any]], None]


def changed(folder: Path, edit: Edit, names: Edit = lambda _: None) -> Tokenizer:
    """The demo's tokenizer, with its tokenizer.json and its tokenizer_config.json edited."""
    folder.mkdir()
    copy_tokenizer(folder)
    for name, change in (("tokenizer.json", edit), ("tokenizer_config.json", names)):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        change(content)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return load_tokenizer(folder, None, {}, trust_remote_code=False)


def rename(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["x~"] = vocabulary.pop(next(token for token, i in vocabulary.items() if i == 2000))
    content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) in vocabulary]


def shorten(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: i for token, i in vocabulary.items() if i < 2047}
    content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) in content["model"]["vocab"]]


def swap_merges(content: dict[str, Any]) -> None:
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def lowercase(content: dict[str, Any]) -> None:
    content["normalizer"] = {"type": "Lowercase"}


def whole_numbers(content: dict[str, Any]) -> None:
    content["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = False


def no_bos_before(content: dict[str, Any]) -> None:
    content["post_processor"] = None


def plain_end(content: dict[str, Any]) -> None:
    content["added_tokens"] = [token | {"special": token["id"] != 1} for token in content["added_tokens"]]


def other_offsets(content: dict[str, Any]) -> None:
    content["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"] = False


def nothing(_: dict[str, Any]) -> None:
    return


def other_bos(content: dict[str, Any]) -> None:
    content["bos_token"] = "<|im_start|>"


def other_ends(content: dict[str, Any]) -> None:
    content |= {"eos_token": "<|endoftext|>", "pad_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("edit", "names", "said"),
    [
        (rename, nothing, 'the first that differs is token 2000: "x~" there, '),
        (shorten, nothing, "it has 2,047 tokens and the model's 2,048; the first that differs is token 2047: none there, "),
        (swap_merges, nothing, "merges in tokenizer.json"),
        (lowercase, nothing, 'they normalize text differently (normalizer in tokenizer.json: {"type": "Lowercase"} there, none here)'),
        (whole_numbers, nothing, "they split text into words differently (pre_tokenizer in tokenizer.json: "),
        (plain_end, nothing, 'token 1, "<|im_start|>", is a special token here and plain text there'),
        (no_bos_before, nothing, "their ids part at token 0: "),
        (nothing, other_bos, 'its BOS is token 1, "<|im_start|>" and the model\'s token 0, "<|endoftext|>"'),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, edit: Edit, names: Edit, said: str) -> None:
    found = demo().difference(changed(tmp_path / "other", edit, names))
    assert found is not None
    assert said in found


@pytest.mark.parametrize(("edit", "names"), [(nothing, nothing), (nothing, other_ends), (other_offsets, nothing)])
def test_settings_that_change_no_ids_are_no_difference(tmp_path: Path, edit: Edit, names: Edit) -> None:
    assert demo().difference(changed(tmp_path / "other", edit, names)) is None


def test_another_kind_of_tokenizer_differs() -> None:
    assert "it has" in str(demo().difference(sentencepiece_like(bpe=True)))
    assert sentencepiece_like(bpe=True).difference(sentencepiece_like(bpe=True)) is None
