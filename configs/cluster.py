"""The settings of a cluster: who may join a run as a worker, and how rows are handed out. None of them changes a result."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from .addresses import is_loopback, split_address
from .fields import FREE, Count, CountOrZero, Expected, Flag, FolderOrNull, Section, SomeSeconds, contradiction

LEAST_LOST_AFTER = 12.0  # seconds; with less, TCP's probes leave no time between two of them


def _checked_address(address: str) -> str:
    split_address(address)
    return address


_Address = Annotated[
    Annotated[str, AfterValidator(_checked_address)] | None, Expected("host:port such as 127.0.0.1:8786 (port 0 is any free one), or null")
]
_LostAfter = Annotated[float, Field(ge=LEAST_LOST_AFTER, le=86400), Expected("a number of seconds from 12 to 86400")]


class ClusterConfig(Section):
    """Workers that share a run: processes on this machine, or on others, that join with `mlx-bulk worker ADDRESS`."""

    listen: Annotated[_Address, FREE] = Field(
        default=None, description="Address at which workers join; null listens for workers of this machine alone. 0.0.0.0 needs tls."
    )
    workers: Annotated[CountOrZero, FREE] = Field(default=0, description="So many workers are started on this machine.")
    tls: Annotated[FolderOrNull, FREE] = Field(
        default=None, description="Folder with ca.pem, node.pem and node.key, which mlx-bulk cluster-keys makes; all machines need it."
    )
    min_workers: Annotated[Count, FREE] = Field(default=1, description="The run begins when so many workers have joined.")
    wait: Annotated[SomeSeconds, FREE] = Field(default=600, description="Seconds without any worker after which the run ends.")
    lease_seconds: Annotated[SomeSeconds, FREE] = Field(default=20, description="A worker gets rows for so many seconds at a time.")
    speculate: Annotated[Flag, FREE] = Field(
        default=True, description="At the end, rows that a slow worker holds go to a second worker; the first to finish counts."
    )
    lost_after: Annotated[_LostAfter, FREE] = Field(
        default=30, description="Seconds without an answer after which a worker is lost. Workers wait 30 for their driver."
    )

    @model_validator(mode="after")
    def _someone_can_join(self) -> Self:
        if self.listen is None and not self.workers:
            raise contradiction(
                "", "found no listen and no workers, so nobody can join; set one (--workers N starts N here) or remove cluster"
            )
        if self.listen is None and self.min_workers > self.workers:
            raise contradiction(
                "min_workers",
                f"found {self.min_workers}; expected at most {self.workers}, which is workers, since no others can join without listen",
            )
        return self

    @model_validator(mode="after")
    def _strangers_need_keys(self) -> Self:
        if self.listen is not None and self.tls is None and not is_loopback(split_address(self.listen)[0]):
            raise contradiction(
                "listen",
                f"found {self.listen}, which other machines can reach, without keys; make keys with mlx-bulk cluster-keys FOLDER and set "
                "cluster.tls to it, or listen on 127.0.0.1 and join with ssh -R 8786:localhost:PORT WORKER mlx-bulk worker "
                "tcp://localhost:8786",
            )
        return self
