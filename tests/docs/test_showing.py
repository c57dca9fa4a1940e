"""Tests the comparison of shown with printed output: words and counts exactly, machine-dependent parts not."""

import pytest

from .pages import Block, anchors, blocks, commands, inline_commands, links
from .showing import difference

LINE = "complete: 3 of 3 rows; 54 prompt + 29 generated tokens in 7.5 s (11 tok/s, 5.6% padding) -> outputs/mine"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (LINE, LINE.replace("7.5 s (11 tok/s, 5.6%", "1,210.3 s (9,876 tok/s, 0.0%")),
        ("1 rows; BLAS: libopenblas.so.0 (SkylakeX)", "1 rows; BLAS: Accelerate"),
        ("state  complete 21:36", "state  complete 09:05"),
        ("speed  ▁▃█ 12 tok/s", "speed  1,200 tok/s"),
        ("speed  12 tok/s", "speed  ▁▃█ 1,200 tok/s"),
        ("ppl 45.31 ± 3.92", "ppl 45.33 ± 3.92"),
        ("same completion    30\nB − A  6.36e-08 ± 3.4e-07", "same completion  30\nB − A   0 ± 0"),
        ("B − A  6.36e-08 ± 3.4e-07", "B − A  -1.1e-10 ± 2.4e-09"),
        ("looked from /home/you/jobs.", "looked from /somewhere/else."),
        ("from …/questions.jsonl", "from /any/where/questions.jsonl"),
        ("first\n…\nlast", "first\na\nb\nlast"),
        ("first\n…\nlast", "first\nlast"),
    ],
)
def test_what_may_differ(shown: str, printed: str):
    assert difference(shown, printed, "/somewhere/else") is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (LINE, LINE.replace("54 prompt", "55 prompt")),
        (LINE, LINE.replace("complete:", "stopped:")),
        (LINE, f"{LINE}\nand more"),
        (LINE, ""),
        ("", LINE),
        ("ppl 45.31", "ppl 45.61"),
        ("ppl 45.31", "ppl 45"),
        ("B − A  6.36e-08 ± 3.4e-07", "B − A  0.0061 ± 0.003"),
        ("B − A  0.0061 ± 0.003", "B − A  0 ± 0"),
        ("first\n…\nlast", "first\na\nb"),
        ("a1 12 + 30 = 42 -0.06", "a1 12 + 30 = 43 -0.06"),
    ],
)
def test_what_may_not(shown: str, printed: str):
    unlike = difference(shown, printed, "/somewhere/else")
    assert unlike is not None
    assert shown in unlike
    assert printed in unlike


PAGE = """\
# A page: of `code`

Run `mlx-bulk status RUN`, then see [here](there.md#part) or ![this](picture.svg).

```yaml
# job.yaml
job: generate
```

<!-- not run: downloads -->

```sh
mlx-bulk run job.yaml \\
    -q
```

<!-- exits with 3 -->

```console
$ mlx-bulk run job.yaml
out
put
$ echo $?
3
```

```text title="output"
```
"""


def test_a_pages_parts_are_found():
    yaml, sh, console, text = blocks(PAGE)
    assert yaml == Block("yaml", "job.yaml", "# job.yaml\njob: generate\n", 5, "", 0)
    assert (sh.not_run, sh.runs) == ("downloads", False)
    assert commands(sh) == [("mlx-bulk run job.yaml     -q", None)]
    assert (console.exits_with, console.runs) == (3, True)
    assert commands(console) == [("mlx-bulk run job.yaml", "out\nput\n"), ("echo $?", "3\n")]
    assert (text.title, text.text) == ("output", "")
    assert inline_commands(PAGE) == ["mlx-bulk status RUN"]
    assert links(PAGE) == ["there.md#part", "picture.svg"]
    assert anchors(PAGE) == {"a-page-of-code"}
