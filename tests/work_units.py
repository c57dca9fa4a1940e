"""Which tests one process does one after another: those of a file share its fixtures, those of an architecture in the zoo its network.

Spread test by test, both processes would build most of them.
"""

from xdist.scheduler import LoadScopeScheduling

ZOO = "tests/zoo/"


def work_unit(test: str) -> str:
    """Returns the name that a test's id shares with those that stay with it: its file, or its parameter's first word in the zoo."""
    file, _, name = test.partition("::")
    _, _, parameters = name.partition("[")
    return f"{ZOO}{parameters.rstrip(']').partition('-')[0]}" if file.startswith(ZOO) and parameters else file


class UnitScheduling(LoadScopeScheduling):
    """Hands out work units in the order of collection, the zoo's small ones last."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)
