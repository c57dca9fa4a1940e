"""Compiles grammars for one model's tokenizer, each distinct one once, and hands out guidance for rows that ask for them."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from ..core.errors import RowError, first_line
from ..core.grammar_spec import GrammarSpec
from ..core.guide import Guide
from ..text.tokenizer import Tokenizer
from .compiled_grammar import CompiledGrammar
from .compiler_input import grammar_text, too_large, why_empty, why_refused
from .finished_text import schema_check
from .matcher_guide import Endings
from .tokenizer_definition import readable, without_marks

KEPT = 512  # compiled grammars that are kept for further rows: some 100 MB


class Grammars:
    """Compiled grammars of one model. ``width``: V, the width of its logits; ``eos``: all ids that end a completion.

    Rows are prepared in one thread and run in another: both may call.
    """

    def __init__(self, tokenizer: Tokenizer, width: int, eos: frozenset[int]):
        self.compilations = 0
        self._source, self._width, self._eos = tokenizer, width, eos
        self._kept: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._endings: dict[tuple[int, ...], Endings] = {}

    @cached_property
    def unfit(self) -> str | None:
        """Why no grammar can be used with this model; None where they can."""
        if not self._source.fast:
            return "this model's tokenizer is a slow one (it has no tokenizer.json); grammars need a fast one"
        return None if self._eos else "this model has no EOS, so no completion could end where its grammar does"

    def refusal(self, spec: GrammarSpec) -> str | None:
        """Says why a grammar cannot be used, as far as it shows before the tokenizer is read; None where nothing is wrong."""
        if problem := self.unfit or too_large(spec):
            return problem
        try:
            error = LLMatcher.validate_grammar(grammar_text(spec, leading_blank=False))
        except ValueError as reason:
            error = first_line(reason, None)
        return why_refused(spec, error) if error else None

    def compiled(self, spec: GrammarSpec, stop_token_ids: tuple[int, ...] = ()) -> "SpecGuidance":
        """Returns what holds completions to ``spec``. The row's stop ids are allowed where EOS is. Raises RowError, stage grammar."""
        self.grammar(spec)
        if stop_token_ids not in self._endings:
            self._endings[stop_token_ids] = Endings.of(self._eos | set(stop_token_ids), self._width)
        return SpecGuidance(self, spec, self._endings[stop_token_ids])

    def grammar(self, spec: GrammarSpec) -> CompiledGrammar:
        """Returns the grammar, compiled now where it is not kept. Raises RowError, stage grammar."""
        with self._lock:
            if (kept := self._kept.get(spec)) is not None:
                self._kept.move_to_end(spec)
                return kept
        made = self._compile(spec)
        with self._lock:
            self._kept[spec] = made
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if problem := self.unfit or too_large(spec):
            raise RowError("grammar", problem)
        self.compilations += 1
        try:
            tokenizer = self._tokenizer if spec.kind == "grammar" else self._tokenizer_of_texts
            fresh = LLMatcher(tokenizer, grammar_text(spec, self._leading_blank(tokenizer)), log_level=0)
            check = schema_check(spec) if spec.relaxed and spec.kind == "json_schema" else None
        except ValueError as error:
            raise RowError("grammar", why_refused(spec, first_line(error, None))) from error
        if fresh.is_error():
            raise RowError("grammar", why_refused(spec, fresh.get_error()))
        first = fresh.deep_copy()  # its tables are filled by this, and the first completion takes it
        first.compute_bitmask()
        if first.is_error():
            raise RowError("grammar", why_empty(spec))
        accepts = None if check is None else lambda ids: check(self._source.decode(np.array(ids, np.int32)))
        return CompiledGrammar(fresh, accepts, [first])

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The tokenizer as llguidance takes it; a large one takes seconds to make."""
        return self._made(readable(self._source.definition))

    @cached_property
    def _tokenizer_of_texts(self) -> LLTokenizer:
        """The same for grammars that ask for no mark by its name."""
        return self._made(without_marks(readable(self._source.definition)))

    def _made(self, definition: str) -> LLTokenizer:
        return LLTokenizer(definition, n_vocab=self._width, eos_token=sorted(self._eos))

    def _leading_blank(self, tokenizer: LLTokenizer) -> bool:
        """Returns whether the tokenizer puts a blank before a text, which decoding takes off again (sentencepiece's dummy prefix)."""
        return tokenizer.decode_bytes(self._source.encode_text("a").ids.tolist()).startswith(b" ")


@dataclass(slots=True, frozen=True)
class SpecGuidance:
    """What holds a row's completions to a grammar; implements ``runner.core.guide.Guidance``.

    Holds no matcher: of many distinct grammars only some are kept compiled.
    """

    grammars: Grammars
    spec: GrammarSpec
    endings: Endings

    @property
    def grammar(self) -> GrammarSpec:
        """The grammar."""
        return self.spec

    def start(self) -> Guide:
        """Returns a guide for one completion, at its beginning."""
        return self.grammars.grammar(self.spec).start(self.endings)


@lru_cache(maxsize=4)
def grammars_of(tokenizer: Tokenizer, width: int, eos: frozenset[int]) -> Grammars:
    """Returns the grammars of a model: the same for all jobs that share its tokenizer, which takes seconds to read."""
    return Grammars(tokenizer, width, eos)
