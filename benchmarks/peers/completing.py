"""The work of a peer in a generation benchmark: prompts, number of new tokens, sampling, rows at once."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Completing:
    """Each prompt gets exactly ``new`` tokens, whatever they are. Greedy at temperature 0; else drawn, with a seed a row."""

    prompts: list[list[int]]
    new: int
    rows: int
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature == 0.0

    def first(self, prompts: int, new: int | None = None) -> "Completing":
        """A smaller piece of the same work."""
        return replace(self, prompts=self.prompts[:prompts], new=min(self.new, new or self.new))

    def save(self, folder: Path) -> None:
        """For the peers' processes."""
        (folder / "completing.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Completing":
        """What was saved there."""
        return cls(**json.loads((folder / "completing.json").read_text()))
