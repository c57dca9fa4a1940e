"""Implements lm-eval's model interface on our engine; importing this module registers the model ``mlx-bulk``.

Follows lm-eval's own HF backend wherever a figure depends on it (requests.py cuts prompts). Knows no tasks and no metrics.
``python -m mlx_bulk.jobs.harness`` is lm-eval's command line with this model in it.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]  (the extra eval has it)
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import has_bos_prefix, resolve_max_length  # pyright: ignore[reportMissingImports]
from tqdm import tqdm

from ...configs.errors import ConfigError
from ...runner.core.errors import DataError, RowError
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Failure, Generated, Outcome, Scored
from ...runner.core.requests import AnyRequest, Generate, Passage, Prompt, Request, Sample, ScoreRequest
from ...runner.engine.engine import Engine
from ...runner.engine.interface import Progress
from ...runner.scoring.scorer import Scorer
from ..generate.generate import sample_seed
from .answers import Answers, NoAnswers
from .model import EvalModel, prepare_for_eval
from .requests import MAX_GEN_TOKS, Continuation, continuation, passage, postprocess, rolling_windows

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

log = logging.getLogger("mlx_bulk")

WINDOW = 4096  # requests that the engine sorts at once
Answer = tuple[float, bool]
AnyRequestT = TypeVar("AnyRequestT", bound=AnyRequest)


@register_model("mlx-bulk")
class BulkLM(TemplateLM):
    """A loaded model with the methods that lm-eval calls. Results have the order of the requests.

    model_args: pretrained (demo, a local folder or a repo id), batch_size (rows; auto), batch_tokens, memory, seed, and the
    settings of ``EvalModelConfig`` by their names. Raises ConfigError for others, ModelError where the model cannot be loaded.
    answers: keeps answers across calls and processes; the weights are then loaded with the first request that is to be computed.
    """

    def __init__(self, answers: Answers | None = None, **model_args: Any):
        super().__init__()
        self._eval_model: EvalModel = prepare_for_eval(model_args)
        self._config = self._eval_model.config
        self._answers = NoAnswers() if answers is None else answers
        self._known: Mapping[int, Any] = {}  # answers of the call that is served now
        self.progress = Progress()  # of all calls together
        self._is_loaded = False
        if answers is None:
            self._load()
        self.tokenizer = self._eval_model.hf
        self.batch_size = self._eval_model.batch_size

    # ------------------------------------------------------------------------------------------- what lm-eval asks about

    @property
    def tokenizer_name(self) -> str:
        """The key of this tokenizer in lm-eval's cache of requests."""
        return (self._config.tokenizer or self._config.path).replace("/", "__")

    @property
    def max_length(self) -> int:
        """The most tokens fed: as set, else by the model's config, the tokenizer, or 2048."""
        return self._config.max_length or resolve_max_length(self._eval_model.hf_config, self.tokenizer)

    @property
    def max_gen_toks(self) -> int:
        """The tokens to generate if a task sets no limit."""
        return MAX_GEN_TOKS

    @property
    def eot_token_id(self) -> Any:
        """The tokenizer's EOS, or None."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: as set, else BOS, else EOS. Raises ConfigError where there is none."""
        for token in (self._config.prefix_token_id, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise ConfigError("prefix_token_id: missing; expected a token id, since the tokenizer has neither BOS nor EOS")

    @property
    def eval_model(self) -> EvalModel:
        """The model that answers."""
        return self._eval_model

    def get_model_info(self) -> dict[str, Any]:
        """Returns the facts about the model that lm-eval writes beside the results, of an earlier session where none is loaded."""
        info = None if self._is_loaded else self._answers.model_info()
        return self._eval_model.info if info is None else info

    def _load(self) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            self._answers.loaded(self._eval_model.info)

    # ---------------------------------------------------------------------------------------------------- text to tokens

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encodes a text. A BOS in the text is not doubled, unless ``add_special_tokens`` asks for it."""
        special = self._config.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            special = False
        return self.tokenizer.encode(string, **({} if special is None else {"add_special_tokens": special}))

    def _prompt_ids(self, string: str) -> list[int]:
        """Encodes a prompt to continue: no BOS is added to a text that begins with BOS's own text, not the prefix token's."""
        special = False if has_bos_prefix(string, self.tokenizer.bos_token) else self._config.add_bos_token
        return self.tokenizer(string, **({} if special is None else {"add_special_tokens": special}))["input_ids"]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Renders messages as text, without the system turn where the template refuses it."""

        def render(messages: list[dict[str, str]]) -> str:
            return self._eval_model.tokenizer.messages_text(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._eval_model.template_args,
            )

        try:
            return render(chat_history)
        except RowError as error:
            without = [message for message in chat_history if message["role"] != "system"]
            if len(without) == len(chat_history):
                raise DataError(str(error)) from error
            try:
                text = render(without)
            except RowError:
                raise DataError(str(error)) from error
            log.warning("%s; they are sent without the system turn", error)
            return text

    # ----------------------------------------------------------------------------------------------------------- scoring

    def loglikelihood(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[Answer]:
        """Returns (sum of logprobs, whether each token is the most likely one) of each request's continuation after its context."""
        if self._config.enable_thinking:
            raise ConfigError("enable_thinking: found true; expected it off for tasks that score continuations")
        if any(request.args == ("", "") for request in requests):
            raise DataError("lm-eval asks for the loglikelihood of an empty continuation behind an empty context")
        self._known = self._answers.begin(requests)
        if len(self._known) == len(requests):
            return [self._known[place] for place in range(len(requests))]
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[Answer]:
        answers: list[Answer] = [(0.0, False)] * len(requests)
        passages = [(passage(context, continuation, self.max_length),) for _, context, continuation in requests]
        for place, answer in self._known.items():
            answers[place] = answer
        for outcome in self._score(passages, disable_tqdm):
            answers[outcome.row] = answer = _answer(outcome)
            self._answers.add(outcome.row, outcome, answer)
            self.cache_hook.add_partial("loglikelihood", requests[outcome.row][0], answer)
        return answers

    def loglikelihood_rolling(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[float]:
        """Returns the sum of logprobs of all tokens of each document, in windows of ``max_length`` with one token of overlap."""
        self._known = self._answers.begin(requests)
        texts: list[str] = [request.args[0] for request in requests]
        totals: list[float] = [self._known.get(place, 0.0) for place in range(len(requests))]
        passages = [
            () if place in self._known else rolling_windows(self.tok_encode(text), self.prefix_token_id, self.max_length)
            for place, text in enumerate(texts)
        ]
        for outcome in self._score(passages, disable_tqdm):
            totals[outcome.row] = total = _answer(outcome)[0]
            self._answers.add(outcome.row, outcome, total)
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def _score(self, passages: Sequence[tuple[Passage, ...]], quiet: bool) -> Iterator[Scored | Failure]:
        """Scores each request without a known answer; yields outcomes as they finish. One without passages scores nothing: 0."""
        requests: list[ScoreRequest] = []
        for row, each in enumerate(passages):
            if each and row not in self._known:
                requests.append(ScoreRequest(row, each))
            elif row not in self._known:
                yield Scored(row, ())
        if not requests:
            return
        self._load()
        scorer = Scorer(self._eval_model.setup, None)
        scorer.progress = self.progress
        with tqdm(total=len(passages), initial=len(self._known), disable=quiet or None, desc="Running loglikelihood requests") as bar:
            for outcome in scorer.run(self._windows(requests), self._answers.stopped):
                bar.update()
                assert isinstance(outcome, Scored | Failure)
                yield outcome
        self._require_all()

    def _require_all(self) -> None:
        """Raises KeyboardInterrupt where an engine ended early because a stop was asked for."""
        if self._answers.stopped():
            raise KeyboardInterrupt

    # -------------------------------------------------------------------------------------------------------- generation

    def generate_until(self, requests: list["Instance"], disable_tqdm: bool = False) -> list[str]:
        """Returns the text generated after each request's context, up to the first stop string."""
        self._known = self._answers.begin(requests)
        arguments: list[Any] = [request.args for request in requests]  # (context, generation_kwargs)
        texts: list[str] = [self._known.get(place, "") for place in range(len(requests))]
        untils: dict[int, list[str]] = {}
        repeats: Counter[str] = Counter()
        engine_requests: list[Request] = []
        for row, (context, settings) in enumerate(arguments):
            sample = Sample(0, sample_seed(self._eval_model.seed, context, repeats[context]))  # a task's repeats are samples of their own
            repeats[context] += 1
            if row in self._known:
                continue
            continued = self._continuation(context, settings)
            untils[row] = continued.until
            ids = np.array(continued.ids, np.int32)
            engine_requests.append(Request(row, Prompt(context, ids, np.zeros_like(ids)), Generate(continued.sampling, (sample,))))
        for outcome in self._generate(engine_requests, len(requests), disable_tqdm):
            texts[outcome.row] = text = self._text(outcome, untils[outcome.row])
            self._answers.add(outcome.row, outcome, text)
            self.cache_hook.add_partial("generate_until", arguments[outcome.row], text)
        return texts

    def _generate(self, requests: Sequence[Request], of: int, quiet: bool) -> Iterator[Outcome]:
        """Continues the prompts of ``requests``, which are among ``of``; yields outcomes as they finish."""
        if not requests:
            return
        self._load()
        engine = Engine(
            replace(self._eval_model.setup, wanted=LogprobOptions(logprobs=False)), self._eval_model.eos, self._eval_model.tokenizer.stopper
        )
        engine.progress = self.progress
        with tqdm(total=of, initial=of - len(requests), disable=quiet or None, desc="Running generate_until requests") as bar:
            for outcome in engine.run(self._windows(requests), self._answers.stopped):
                bar.update()
                yield outcome
        self._require_all()

    def _continuation(self, context: str, gen_kwargs: Mapping[str, Any]) -> Continuation:
        eos = None if self.eot_token_id is None else self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False)
        model = self._eval_model
        return continuation(self._prompt_ids(context), gen_kwargs, eos, model.special, model.generation, self.max_length)

    def _text(self, outcome: Outcome, until: list[str]) -> str:
        if not isinstance(outcome, Generated):
            log.warning("request %d: %s", outcome.row, _message(outcome))
            return ""
        ids, end = outcome.ids.tolist(), self._eval_model.think_end
        if isinstance(end, int) and end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return postprocess(text.lstrip() if isinstance(end, int) else text, until, end if isinstance(end, str) else None)

    def _windows(self, requests: Sequence[AnyRequestT]) -> Callable[[bool], list[AnyRequestT] | None]:
        """Returns a source of requests for an engine, a window at a time. Raises ModelError for one too large for memory."""
        self._eval_model.refuse(requests)
        parts = iter([list(requests[at : at + WINDOW]) for at in range(0, len(requests), WINDOW)])
        return lambda wait: next(parts, None)


def _answer(outcome: Scored | Failure) -> Answer:
    """Returns the float64 sum over all passages, and whether all tokens are greedy; NaN where the model's logits are."""
    if isinstance(outcome, Failure):
        log.warning("request %d: %s", outcome.row, outcome.message)
        return math.nan, False
    greedy = all(part.greedy is not None and bool(part.greedy.all()) for part in outcome.scores)
    return math.fsum(value for part in outcome.scores for value in part.logprobs.tolist()), greedy


def _message(outcome: Outcome) -> str:
    return outcome.message if isinstance(outcome, Failure) else "scored, where text was asked for"
