"""Options of the logprobs that a job asks for."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class LogprobOptions:
    """Selects what is computed for each token.

    echo, top, stats: ``logprobs.prompt``, ``logprobs.top`` and ``logprobs.stats`` of the config.
    For scored tokens: ``greedy``, whether the token is the most likely one; ``temperature``, its logprob at this temperature too.
    For generated tokens: ``tempered``, the logprob under logits / temperature; ``kept``, the ids that could be drawn;
    ``reference``, the logprobs under another policy or model; ``logprobs``, the model's own logprobs. Without these, records hold
    the logprobs of the distribution sampled from in their place.
    """

    echo: bool = False
    top: int = 0
    stats: bool = False
    greedy: bool = False
    tempered: bool = False
    kept: bool = False
    reference: bool = False
    temperature: float | None = None
    logprobs: bool = True

    @property
    def echoed(self) -> str:
        """Names what an echo holds. Options with equal names can share an echo; "" without one."""
        return f"{self.top} {self.stats} {self.greedy} {self.temperature}" if self.echo else ""
