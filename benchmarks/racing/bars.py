"""Holds figures to their bars: a line for each, and the same as JSON."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class Bar:
    """A figure that may be at most ``most``. disturbed: the share of its time that other work on the machine took, where that is known."""

    name: str
    found: float
    most: float
    disturbed: float = 0.0

    @property
    def met(self) -> bool:
        """Whether the figure keeps to it."""
        return self.found <= self.most

    @property
    def trusted(self) -> bool:
        """Whether the machine was quiet enough for the figure."""
        return self.disturbed < 0.05

    def __str__(self) -> str:
        doubt = "" if self.trusted else f"; other work took {self.disturbed:.0%} of the time, so measure again on an idle machine"
        return f"bar: {self.name}: at most {self.most:g}, found {self.found:g}: {'met' if self.met else 'NOT MET'}{doubt}"


def told(bars: list[Bar]) -> dict[str, Any]:
    """Prints a line for each; returns a key of a benchmark's JSON line."""
    for bar in bars:
        print(bar)
    return {"bars": [asdict(bar) | {"met": bar.met, "trusted": bar.trusted} for bar in bars]}
