"""Tests that text which is shown cannot act on a terminal, and that ordinary text stays as it is."""

import doctest
from importlib import import_module

from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.visible import visible, visible_lines


@given(st.text(st.characters()))
def test_nothing_is_left_that_a_terminal_obeys(text: str):
    shown = visible(text)
    shown.encode()
    obeyed = {*map(chr, range(32)), *map(chr, range(127, 160)), *"\u2028\u2029\u200e\u200f\u061c\ufeff"}
    obeyed |= {chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    assert obeyed.isdisjoint(shown)
    assert len(shown.splitlines()) <= 1


@given(st.text(st.characters(categories=["L", "N", "P", "Sm", "Sc", "So", "Zs"])))
def test_ordinary_text_stays(text: str):
    assert visible(text) == text


def test_a_block_keeps_its_lines():
    assert visible_lines("a\n  b\x1b[1m\r\n") == "a\n  b\\x1b[1m\\r\n"


def test_the_examples():
    assert doctest.testmod(import_module("mlx_bulk.configs.visible")) == (0, 1)
