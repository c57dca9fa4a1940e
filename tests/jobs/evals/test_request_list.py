"""The requests of an evaluation: their order, their rows, and the hash by which a task's requests are known again."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from mlx_bulk.jobs.evals.request_list import RequestList


@dataclass
class Instance:
    """What lm-eval's instances have of a request."""

    request_type: str
    args: tuple[Any, ...]
    doc_id: int = 0
    idx: int = 0
    repeats: int = 1
    task_name: str = "t"


@dataclass
class Task:
    instances: list[Instance] = field(default_factory=list[Instance])


def choices(*texts: str) -> Task:
    return Task([Instance("loglikelihood", ("The king is", text), doc_id=1, idx=number) for number, text in enumerate(texts)])


def digests(**tasks: Task) -> list[str]:
    return [source["sha256"] for source in RequestList(tasks).sources]


def test_rows_follow_the_tasks_and_repeats_are_rows_of_their_own():
    sums = Task([Instance("generate_until", ("1+1=", {"until": ["\n"]}), doc_id=number, repeats=2) for number in range(2)])
    requests = RequestList({"a": choices(" dead", " well"), "b": sums})
    assert requests.rows == 6
    assert [source["rows"] for source in requests.sources] == [2, 4]
    assert requests.positions([sums.instances[1], sums.instances[1], sums.instances[0], sums.instances[0]]) == [4, 5, 2, 3]
    assert [(each.kind, each.doc_id, each.idx, each.repeat) for each in requests] == [
        *(("loglikelihood", 1, number, 0) for number in range(2)),
        *(("generate_until", number, 0, repeat) for number in range(2) for repeat in range(2)),
    ]
    last = requests.at(5)
    assert (last.prompt, last.continuation, last.generation_kwargs) == ("1+1=", None, {"until": ["\n"]})


def test_a_text_that_is_scored_as_a_whole_has_no_prompt():
    only = RequestList({"a": Task([Instance("loglikelihood_rolling", ("A text.",))])}).at(0)
    assert (only.prompt, only.continuation) == ("", "A text.")


@pytest.mark.parametrize(
    "changed",
    [
        choices(" dead", " ill"),
        choices(" well", " dead"),
        choices(" dead"),
        Task([Instance("loglikelihood_rolling", (f"The king is{text}",), idx=number) for number, text in enumerate((" dead", " well"))]),
        Task([Instance("loglikelihood", ("The king is", text), repeats=2) for text in (" dead", " well")]),
    ],
)
def test_all_that_may_change_an_answer_changes_the_hash(changed: Task):
    assert digests(t=choices(" dead", " well")) == digests(t=choices(" dead", " well"))
    assert digests(t=changed) != digests(t=choices(" dead", " well"))


def test_a_tasks_hash_does_not_depend_on_the_others():
    assert digests(a=choices(" dead"), b=choices(" well"))[1] == digests(b=choices(" well"))[0]
