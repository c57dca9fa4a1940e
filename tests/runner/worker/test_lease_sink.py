"""When finished records leave a worker."""

import pyarrow as pa
from mlx_bulk.runner.cluster.messages import Frames, FromWorker
from mlx_bulk.runner.core.shard_layout import Layout
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
