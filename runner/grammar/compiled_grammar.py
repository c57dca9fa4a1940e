"""One compiled grammar: its matchers, fresh and used, and the guidance of rows that ask for it."""

from dataclasses import dataclass, field

from llguidance import LLMatcher

from .matcher_guide import Accepts, Endings, MatcherGuide


@dataclass(slots=True, frozen=True)
class CompiledGrammar:
    """A matcher at the grammar's beginning, which is only copied, and ``spare`` ones that finished completions have left."""

    fresh: LLMatcher
    accepts: Accepts | None
    spare: list[LLMatcher] = field(default_factory=list[LLMatcher])

    def start(self, endings: Endings) -> MatcherGuide:
        """Returns a guide for one completion, at its beginning."""
        try:
            matcher = self.spare.pop()
        except IndexError:
            matcher = self.fresh.deep_copy()
        return MatcherGuide(matcher, endings, self.spare, self.accepts)
