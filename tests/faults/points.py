"""Names the points at which a run can be made to die, as data that a child of ``child.py`` installs.

A point is a call of a function ("module:attribute"), told from others by a pattern that its arguments match: paths, paths of
open files, bytes, a row's position. It is named here alone; the code that runs knows nothing of it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

SYNC = ("mlx_bulk.runner.files.atomic:sync_descriptor",)
WRITE, REPLACE, UNLINK, MKDIR = ("os:write",), ("os:replace",), ("os:unlink",), ("os:mkdir",)
FRAME = ("mlx_bulk.runner.store.journal:append",)
ROW = ("mlx_bulk.runner.pipeline.row_requests:RowRequests.prepare",)
RECORD = ("mlx_bulk.runner.store.writer:Writer.add",)
COMMITS = r"/commits\.jsonl "


@dataclass(slots=True, frozen=True)
class Point:
    """The ``nth`` call that matches ``where``: before it, after it, or with half of its bytes on the disk ("torn").

    ``action``: the process kills itself, is stopped until it is told to go on ("hold"), or the call fails: no room on the
    device ("full"), a row that cannot be done ("fail"). ``again``: each later call too.
    """

    name: str
    functions: tuple[str, ...]
    where: str = ""
    when: Literal["before", "after", "torn"] = "before"
    nth: int = 1
    action: Literal["kill", "hold", "full", "fail"] = "kill"
    again: bool = False

    def described(self) -> dict[str, Any]:
        """Returns the points as JSON."""
        return asdict(self)


# In the order in which a run comes to them.
READING = [
    Point("folders made", MKDIR, r"run/journal ", "after"),
    Point("before the scan", ("mlx_bulk.runner.pipeline.run_spec:scan",)),
    Point("scan written beside its name", REPLACE, r"/inputs\.json$"),
    Point("scan saved", REPLACE, r"/inputs\.json$", "after"),
    Point("row 7 read", ROW, r" 7$"),
    Point("sixth prompt tokenized", ("mlx_bulk.runner.text.tokenizer:Tokenizer.encode",), when="after", nth=6),
]
BINDING = [
    Point("run.json half written", SYNC, r"/\.run\.json\.tmp$", "torn"),
    Point("run.json written beside its name", REPLACE, r"/run\.json$"),
    Point("run.json there", REPLACE, r"/run\.json$", "after"),
    Point("start half noted", WRITE, r"/sessions\.jsonl ", "torn"),
]
JOURNALLING = [
    Point("before the journal begins", ("mlx_bulk.runner.store.journal:begin",)),
    Point("torn first frame of a journal", WRITE, r"/journal/00000001 ", "torn"),
    Point("before a frame", FRAME, nth=4),
    Point("torn frame", WRITE, r"/journal/\d+ ", "torn", nth=6),
    Point("after a frame", FRAME, when="after", nth=3),
    Point("after a sync", ("mlx_bulk.runner.store.journal:sync_journal",), when="after", nth=3),
]
COMMITTING = [
    Point("part half written", SYNC, r"/results/\.part-00000002", "torn"),
    Point("part whole, not renamed", REPLACE, r"/errors/part-00000002\.arrow$"),
    Point("one of two parts renamed", REPLACE, r"/results/part-00000002\.arrow$"),
    Point("both parts renamed", REPLACE, r"/results/part-00000002\.arrow$", "after"),
    Point("before a commit's line", WRITE, COMMITS + r'\{"name":"part-00000002'),
    Point("torn line of a commit", WRITE, COMMITS + r'\{"name":"part-00000002', "torn"),
    Point("line of a commit written, not synced", WRITE, COMMITS + r'\{"name":"part-00000002', "after"),
    Point("before the journal goes", UNLINK, r"/journal/00000002"),
    Point("after the journal is gone", UNLINK, r"/journal/00000002", "after"),
]
SUMMARISING = [
    Point("before the closing line", WRITE, COMMITS + r'\{"complete"'),
    Point("torn closing line", WRITE, COMMITS + r'\{"complete"', "torn"),
    Point("closing line written", WRITE, COMMITS + r'\{"complete"', "after"),
    Point("statistics written beside their name", REPLACE, r"/stats\.arrow$"),
    Point("statistics there", REPLACE, r"/stats\.arrow$", "after"),
    Point("before the summary", REPLACE, r"/summary\.json$"),
    Point("summary there", REPLACE, r"/summary\.json$", "after"),
    Point("end half noted", WRITE, r'/sessions\.jsonl \{"event":"end"', "torn"),
]
EXTENDING = [
    Point("run.json of the longer input", REPLACE, r"/run\.json$"),
    Point("shard reopened", ("mlx_bulk.runner.store.journal:begin",), "/journal/00000003", "after"),
    Point("torn first frame of a reopened shard", WRITE, "/journal/00000003 ", "torn"),
    Point("torn frame of a reopened shard", WRITE, "/journal/00000003 ", "torn", nth=4),
    Point("merged part half written", SYNC, r"/results/\.part-00000003\.g2", "torn"),
    Point("merged part not renamed", REPLACE, r"/results/part-00000003\.g2\.arrow$"),
    Point("merged part renamed", REPLACE, r"/results/part-00000003\.g2\.arrow$", "after"),
    Point("torn superseding line", WRITE, COMMITS + r'\{"name":"part-00000003\.g2', "torn"),
    Point("before the superseded part goes", UNLINK, r"/results/part-00000003\.arrow"),
    Point("before the journal of a reopened shard goes", UNLINK, "/journal/00000003"),
]
RETRYING = [
    Point("first of the shards reopened", ("mlx_bulk.runner.store.journal:begin",), when="after"),
    Point("torn frame of a retried row", WRITE, r"/journal/\d+ ", "torn", nth=8),
    Point("parts of a retried shard not renamed", REPLACE, r"/results/part-00000000\.g2\.arrow$"),
    Point("torn line of a retried shard", WRITE, COMMITS, "torn", nth=2),
    Point("before the errors that were retried go", UNLINK, r"/errors/part-00000001\.arrow"),
]
OVERWRITING = [
    Point("old run marked", REPLACE, r"/\.overwrite$", "after"),
    Point("before the old log goes", UNLINK, r"/commits\.jsonl"),
    Point("old parts half gone", UNLINK, r"/results/part-00000002"),
    Point("old run.json gone", UNLINK, r"/run\.json$", "after"),
    Point("old run gone", UNLINK, r"/\.overwrite$", "after"),
]
ADOPTING = [
    Point("before a part is adopted", WRITE, COMMITS),
    Point("torn line of an adopted part", WRITE, COMMITS, "torn", nth=2),
    Point("part adopted", WRITE, COMMITS, "after", nth=2),
    Point("all adopted, not closed", WRITE, COMMITS + r'\{"complete"'),
]
SCORING = [
    Point("torn frame of scores", WRITE, r"/journal/\d+ ", "torn", nth=4),
    Point("scores whole, not renamed", REPLACE, r"/results/part-00000001\.arrow$"),
    Point("torn line of a commit of scores", WRITE, COMMITS + r'\{"name":"part-00000002', "torn"),
    Point("statistics of scores there", REPLACE, r"/stats\.arrow$", "after"),
]

# Where a run dies the second time, if it cannot come to the same point again.
THEN = {
    "folders made": "scan saved",
    "line of a commit written, not synced": "before the closing line",
    "before the journal goes": "torn closing line",
    "after the journal is gone": "before the closing line",
    "closing line written": "statistics there",
    "summary there": "scan saved",
    "end half noted": "scan written beside its name",
    "shard reopened": "torn frame of a reopened shard",
}
