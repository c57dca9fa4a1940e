"""The project's pages and their fenced blocks: what is a command, what is a file, what is shown as output. Runs nothing.

How a page is written, so that it can be run:

    ```console                  lines from `$ ` on are commands, the others what they print
    ```sh, ```bash              commands alone
    ```python                   run in the page's folder, names kept from block to block; a following
    ```text title="output"      is what it prints
    ```yaml title="job.yaml"    a file of that name (or `# job.yaml` in its first line); without one it is checked as a config
    <!-- not run: why -->       in the line above a block that cannot be run here
    <!-- exits with 4 -->       above a block of commands the last of which fails
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>.*)$")
_MARK = re.compile(r"^ *<!-- (?P<mark>.*?) -->$")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?:\]\(|(?:src|href|srcset)=\")([^)\s\"]+)[)\"]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its info string's language and title, its text, the line of its fence, and what a comment above it says."""

    language: str
    title: str
    text: str
    line: int
    not_run: str
    exits_with: int

    @property
    def runs(self) -> bool:
        """True for what a reader would type or save."""
        return self.language in ("console", "sh", "bash", "python", "yaml") and not self.not_run


def blocks(page: str) -> list[Block]:
    """The blocks of a page's text, in their order."""
    found: list[Block] = []
    lines = page.splitlines()
    at, above = 0, ""
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            above = lines[at] if lines[at].strip() else above
            at += 1
            continue
        end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == fence["ticks"])
        text = textwrap.dedent("".join(f"{line}\n" for line in lines[at + 1 : end]))
        found.append(_block(fence["info"].strip(), text, at + 1, above))
        at, above = end + 1, ""
    return found


def _block(info: str, text: str, line: int, above: str) -> Block:
    language, _, rest = info.partition(" ")
    titled = re.search(r'title="([^"]+)"', rest)
    named = re.match(r"# (\S+\.yaml)\n", text) if language == "yaml" else None
    title = titled[1] if titled else named[1] if named else ""
    mark = _MARK.match(above)
    said = mark["mark"] if mark else ""
    code = re.fullmatch(r"exits with (\d+)", said)
    return Block(
        language, title, text, line, said.removeprefix("not run: ") if said.startswith("not run: ") else "", int(code[1]) if code else 0
    )


def commands(block: Block) -> list[tuple[str, str | None]]:
    """A block's commands, each with what it is shown to print: None where the block shows no output at all."""
    found: list[tuple[str, str | None]] = []
    for line in re.sub(r"\\\n", "", block.text).splitlines():
        if block.language != "console":
            if line.strip() and not line.startswith("#"):
                found.append((line.strip(), None))
        elif line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, shown = found.pop()
            found.append((command, f"{shown}{line}\n"))
    return found


def prose(page: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)


def inline_commands(page: str) -> list[str]:
    """The commands that stand in running text."""
    return [code for code in _CODE.findall(prose(page)) if code.startswith("mlx-bulk ")]


def links(page: str) -> list[str]:
    """Where a page's links and pictures lead, those to other sites left out."""
    return [link for link in _LINK.findall(prose(page)) if not link.startswith(("http:", "https:", "mailto:"))]


def anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
