"""Which tests one process does one after another: those of a file share its fixtures, those of an architecture in the zoo its network.

Spread test by test, both processes would build most of them. Where a file's fixtures are an architecture's own, the file is shared out by
architecture: whole, it would be among the last, and the other process would wait for its end.
"""

from xdist.scheduler import LoadScopeScheduling

ZOO = "tests/zoo/"
RULES = ("tests/test_layering.py", "tests/test_names.py")  # both read every file of ours
VISION = "tests/runner/vision"
BY_ARCHITECTURE = (f"{VISION}/test_against_transformers.py", f"{VISION}/test_attention_against_transformers.py")


def work_unit(test: str) -> str:
    """Returns the name that a test's id shares with those that stay with it: its file, or its parameter's first word, an architecture."""
    file, _, name = test.partition("::")
    if file in RULES:
        return RULES[0]
    _, _, parameters = name.partition("[")
    architecture = parameters.rstrip("]").partition("-")[0]
    if file.startswith(ZOO) and architecture:
        return f"{ZOO}{architecture}"
    return f"{file}[{architecture}]" if file in BY_ARCHITECTURE else file


class UnitScheduling(LoadScopeScheduling):
    """Hands out work units in the order of collection, the zoo's small ones last."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)
