"""What the reward functions said of a group: numbers a function and a sample, and why one is missing. Knows no function and no policy."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Ratings:
    """A group's rewards by the functions' names, in the order of the config; each list has a place a sample, in their order.

    rewards: None where the function left the sample out, or could not rate it; errors: in the second case why, as
    "kind: text", else None. Kinds are exception, timeout, length, type, nan, infinite, died, start.
    """

    rewards: dict[str, list[float | None]]
    errors: dict[str, list[str | None]]
