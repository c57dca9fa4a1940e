"""Lengths of GSM8K's questions and answers, and random token ids of these lengths: the work of all peers.

A random model knows no language, so ids are drawn at random; only how many there are matters. A vocabulary of 49 k takes about four
characters a token. Without the file, lengths are drawn log-normally, with GSM8K's own mean and spread.
"""

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

FIRST_ID = 3  # those before it are the tokenizer's special tokens
QUESTION, ANSWER = (4.02, 0.39, 18, 212), (4.18, 0.48, 12, 268)  # log's mean, its deviation, least, most


@dataclass(slots=True, frozen=True)
class Texts:
    """Token ids of questions and of their answers, one of each a row; ``source`` says where their lengths come from."""

    questions: list[list[int]]
    answers: list[list[int]]
    source: str

    @property
    def joined(self) -> list[list[int]]:
        """Each question with its answer behind it."""
        return [question + answer for question, answer in zip(self.questions, self.answers, strict=True)]

    def save(self, folder: Path) -> None:
        """For the peers' processes."""
        (folder / "texts.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Texts":
        """What was saved there."""
        return cls(**json.loads((folder / "texts.json").read_text()))


def texts(data: Path | None, rows: int, vocabulary: int, seed: int = 0) -> Texts:
    """``rows`` rows with the lengths of a JSON-lines file's ``question`` and ``answer``; without one, drawn."""
    rng = np.random.default_rng(seed)
    if data is None:
        lengths = np.stack([np.clip(rng.lognormal(mean, spread, rows), low, high) for mean, spread, low, high in (QUESTION, ANSWER)], 1)
        source = "lengths drawn like GSM8K's"
    else:
        with data.open() as lines:
            read = [json.loads(line) for line in islice(lines, rows)]
        if len(read) < rows:
            raise SystemExit(f"{data}: {len(read)} rows, {rows} are asked for")
        lengths = np.array([[max(2, len(row[name]) // 4) for name in ("question", "answer")] for row in read])
        source = f"lengths of {data.name}"
    questions, answers = ([draw(rng, int(length), vocabulary) for length in column] for column in lengths.T)
    return Texts(questions, answers, source)


def draw(rng: np.random.Generator, count: int, vocabulary: int) -> list[int]:
    """Random ids, none of them special."""
    return rng.integers(FIRST_ID, vocabulary, count).tolist()
