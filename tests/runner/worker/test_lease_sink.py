"""When finished records leave a worker."""

import pyarrow as pa
from mlx_bulk.runner.cluster.messages import Frames, FromWorker
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.store.shard_ledger import WHOLE
from mlx_bulk.runner.worker.lease_sink import LeaseSink

SCHEMA = pa.schema([("row", pa.int64()), ("sample", pa.int64()), ("completion", pa.large_string())])


def test_few_records_wait_for_others_and_leave_when_all_do():
    told: list[FromWorker] = []
    sink = LeaseSink("run", SCHEMA, Layout(20, 10), told.append)
    for position in (0, 1, 12):
        sink.admit(position, 1)
        sink.add(position, 0, {"completion": "x"})
    sink.push(2)
    assert [message.resolved for message in told if isinstance(message, Frames)] == [((0, 0), (1, 0))]
    sink.push()
    assert [message.resolved for message in told if isinstance(message, Frames)] == [((0, 0), (1, 0)), ((12, 0),)]


def test_a_row_that_is_done_again_before_its_first_records_have_left_goes_into_another_message():
    """As when another worker cannot load the policy that has sampled it: the driver takes a message with a record twice for damaged."""
    told: list[FromWorker] = []
    sink = LeaseSink("run", SCHEMA, Layout(20, 10), told.append)
    for lease in ("of a refused policy", "again"):
        sink.expect(lease, 0, [0, 1, 2], [])
        sink.admit(0, 2)
        sink.add_group(0, {sample: {"completion": lease} for sample in range(2)})
        sink.fail(Failure(1, None, None, "engine", "ValueError", "too bad", "{}"))
    sink.push()
    sent = [message for message in told if isinstance(message, Frames)]
    assert [message.resolved for message in sent] == [((0, 0), (0, 1), (1, WHOLE))] * 2
    assert [message.admitted for message in sent] == [((0, 2),)] * 2
    assert [len(message.frames) for message in sent] == [2, 2]
