"""lm-evaluation-harness on our engine: importing this module registers the model ``mlx-bulk`` with lm-eval.

In all that shapes a figure it follows lm-eval's own HF backend (the cuts are harness_requests.py's); it knows nothing of tasks
or metrics. ``python -m mlx_bulk.jobs.harness`` is lm-eval's command line with this model in it.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jinja2.exceptions import TemplateError
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]  (the extra eval has it)
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import has_bos_prefix, resolve_max_length  # pyright: ignore[reportMissingImports]
from tqdm import tqdm

from ...configs.errors import ConfigError
from ...runner.core.errors import DataError
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.requests import (
    AnyRequest,
    Failure,
    Generate,
    Generated,
    Outcome,
    Passage,
    Prompt,
    Request,
    Sample,
    Scored,
    ScoreRequest,
)
from ...runner.engine.engine import Engine
from ...runner.engine.scorer import Scorer
from ..generate.generate import sample_seed
from .model import EvalModel, load_for_eval
from .requests import MAX_GEN_TOKS, Continuation, continuation, passage, postprocess, rolling_windows

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

log = logging.getLogger("mlx_bulk")

WINDOW = 4096  # requests that are put in order at once
Answer = tuple[float, bool]
Asked = TypeVar("Asked", bound=AnyRequest)


@register_model("mlx-bulk")
class BulkLM(TemplateLM):
    """A loaded model with the methods that lm-eval calls; all results come in the order of the requests.

    model_args: pretrained (demo, a local folder or a repo id), batch_size (rows; auto), batch_tokens, memory, seed, and the
    settings of ``EvalModelConfig`` by their names. Raises ConfigError for others, ModelError where the model cannot be loaded.
    """

    def __init__(self, **model_args: Any):
        super().__init__()
        self._opened: EvalModel = load_for_eval(model_args)
        self._config = self._opened.config
        self.tokenizer = self._opened.hf
        self.batch_size = self._opened.batch_size

    # ------------------------------------------------------------------------------------------- what lm-eval asks about

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of requests tells tokenizers apart by."""
        return (self._config.tokenizer or self._config.path).replace("/", "__")

    @property
    def max_length(self) -> int:
        """Tokens that are fed at most: as set, else by the model's config, the tokenizer, or 2048."""
        return self._config.max_length or resolve_max_length(self._opened.hf_config, self.tokenizer)

    @property
    def max_gen_toks(self) -> int:
        """Tokens generated where a task does not say."""
        return MAX_GEN_TOKS

    @property
    def eot_token_id(self) -> Any:
        """The tokenizer's EOS; None where it has none."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: as set, else BOS, else EOS. Raises ConfigError where there is none."""
        for found in (self._config.prefix_token_id, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if found is not None:
                return int(found)
        raise ConfigError("prefix_token_id: missing; expected a token id, since the tokenizer has neither BOS nor EOS")

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval notes of the model beside the results."""
        return self._opened.info

    # ---------------------------------------------------------------------------------------------------- text to tokens

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text. A BOS that the text brings is not doubled, unless special tokens are asked for by name."""
        special = self._config.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            special = False
        return self.tokenizer.encode(string, **({} if special is None else {"add_special_tokens": special}))

    def _prompt_ids(self, string: str) -> list[int]:
        """Ids of a prompt that is continued: here the BOS's own text is looked for, not the prefix token's."""
        special = False if has_bos_prefix(string, self.tokenizer.bos_token) else self._config.add_bos_token
        return self.tokenizer(string, **({} if special is None else {"add_special_tokens": special}))["input_ids"]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as text; without the system turn where the template refuses it."""

        def rendered(messages: list[dict[str, str]]) -> str:
            return self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._opened.template_args,
            )

        try:
            return rendered(chat_history)
        except TemplateError:
            log.warning("the chat template refuses the messages; they are sent without the system turn")
            return rendered([message for message in chat_history if message["role"] != "system"])

    # ----------------------------------------------------------------------------------------------------------- scoring

    def loglikelihood(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[Answer]:
        """(sum of logprobs, whether each token is the most likely one) of each request's continuation behind its context."""
        if self._config.enable_thinking:
            raise ConfigError("enable_thinking: found true; expected it off for tasks that score continuations")
        if any(request.args == ("", "") for request in requests):
            raise DataError("lm-eval asks for the loglikelihood of an empty continuation behind an empty context")
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[Answer]:
        found: list[Answer] = [(0.0, False)] * len(requests)
        passages = [(passage(context, continuation, self.max_length),) for _, context, continuation in requests]
        for outcome in self._scored(passages, disable_tqdm):
            found[outcome.row] = answer = _answer(outcome)
            self.cache_hook.add_partial("loglikelihood", requests[outcome.row][0], answer)
        return found

    def loglikelihood_rolling(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[float]:
        """Sum of the logprobs of all tokens of each document, in windows of ``max_length`` with one token of overlap."""
        texts: list[str] = [request.args[0] for request in requests]
        passages = [rolling_windows(self.tok_encode(text), self.prefix_token_id, self.max_length) for text in texts]
        found = [0.0] * len(requests)
        for outcome in self._scored(passages, disable_tqdm):
            found[outcome.row] = _answer(outcome)[0]
        for text, total in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return found

    def _scored(self, passages: Sequence[tuple[Passage, ...]], quiet: bool) -> Iterator[Scored | Failure]:
        """What the scorer makes of each request that has passages, as they finish."""
        requests = [ScoreRequest(row, found) for row, found in enumerate(passages) if found]
        scorer = Scorer(self._opened.setup, None)
        with tqdm(total=len(requests), disable=quiet or None, desc="Running loglikelihood requests") as bar:
            for outcome in scorer.run(self._windows(requests), lambda: False):
                bar.update()
                assert not isinstance(outcome, Generated)
                yield outcome

    # -------------------------------------------------------------------------------------------------------- generation

    def generate_until(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[str]:
        """Text generated behind each request's context, up to the first stop string."""
        arguments: list[Any] = [request.args for request in requests]  # (context, generation_kwargs)
        asked = [self._continuation(*pair) for pair in arguments]
        before: Counter[str] = Counter()
        ours: list[Request] = []
        for row, ((context, _), wanted) in enumerate(zip(arguments, asked, strict=True)):
            ids = np.array(wanted.ids, np.int32)
            sample = Sample(0, sample_seed(self._opened.seed, context, before[context]))  # a task's repeats are samples of their own
            before[context] += 1
            ours.append(Request(row, Prompt(context, ids, np.zeros_like(ids)), Generate(wanted.sampling, (sample,))))
        found = [""] * len(requests)
        engine = Engine(
            replace(self._opened.setup, wanted=LogprobOptions(logprobs=False)), self._opened.eos, self._opened.tokenizer.stopper
        )
        with tqdm(total=len(ours), disable=disable_tqdm or None, desc="Running generate_until requests") as bar:
            for outcome in engine.run(self._windows(ours)):
                bar.update()
                found[outcome.row] = text = self._text(outcome, asked[outcome.row].until)
                self.cache_hook.add_partial("generate_until", arguments[outcome.row], text)
        return found

    def _continuation(self, context: str, gen_kwargs: Mapping[str, Any]) -> Continuation:
        eos = None if self.eot_token_id is None else self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False)
        opened = self._opened
        return continuation(self._prompt_ids(context), gen_kwargs, eos, opened.special, opened.generation, self.max_length)

    def _text(self, outcome: Outcome, until: list[str]) -> str:
        if not isinstance(outcome, Generated):
            log.warning("request %d: %s", outcome.row, _message(outcome))
            return ""
        ids, end = outcome.ids.tolist(), self._opened.think_end
        behind = isinstance(end, int) and end in ids
        if behind:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return postprocess(text.lstrip() if isinstance(end, int) else text, until, end if isinstance(end, str) else None)

    def _windows(self, requests: Sequence[Asked]) -> Callable[[bool], list[Asked] | None]:
        """The requests a window at a time, as an engine takes them. Raises ModelError for one that memory does not hold."""
        for request in requests:
            self._opened.refuse(request)
        parts = iter([list(requests[at : at + WINDOW]) for at in range(0, len(requests), WINDOW)])
        return lambda wait: next(parts, None)


def _answer(outcome: Scored | Failure) -> Answer:
    """Sum over all passages in float64, and whether all tokens are greedy; NaN where the model's logits are."""
    if isinstance(outcome, Failure):
        log.warning("request %d: %s", outcome.row, outcome.message)
        return math.nan, False
    greedy = all(part.greedy is not None and bool(part.greedy.all()) for part in outcome.scores)
    return math.fsum(value for part in outcome.scores for value in part.logprobs.tolist()), greedy


def _message(outcome: Scored | Failure) -> str:
    return outcome.message if isinstance(outcome, Failure) else "scored, where text was asked for"
