"""Rows, models and code that tests of the command share."""

import re

from .bench import Record

LOADING = re.compile("float32 on|float16 on|bfloat16 on")  # stands in the line that says how a model was loaded


THREE: list[Record] = [{"q": "a"}, {"q": None}, {"q": "c"}]
