"""Records what a terminal shows while commands are given, as an SVG that moves: ``python -m tests.docs.recording`` writes the README's.

The commands run in tmux, whose screen is read several times a second. Needs tmux and rich.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COMMANDS = ("cat job.yaml", "mlx-bulk run job.yaml", "mlx-bulk status outputs/answers")
_JOB = """\
job: generate
model: {path: demo}
data: {path: questions.jsonl}
prompt: {user: "{{ question }}"}
sampling: {max_tokens: 32, n: 4}
output: {path: outputs/answers}
"""
_QUESTIONS = 200

_COLUMNS, _ROWS = 120, 21
_EVERY = 1.0  # seconds between two looks at the screen
_TYPED, _LAST = 1.2, 8.0  # seconds that a command stands before it is given, and that the last screen stands
_CELL, _LINE, _EDGE = 8.0, 19, 16
_INK, _PAPER = "#d8dee9", "#1b222c"

Frame = tuple[float, str]  # seconds, and the screen with its colours as ANSI codes


def recorded(commands: tuple[str, ...], folder: Path) -> list[Frame]:
    """Returns the screens of a terminal in ``folder`` while the commands run, each with its seconds."""
    tmux = ["tmux", "-L", f"recording-{os.getpid()}"]
    shell = f"PATH={Path(sys.executable).parent}:$PATH PS1='$ ' exec bash --norc --noprofile"

    def asked(*words: str) -> str:
        return subprocess.run([*tmux, *words], capture_output=True, text=True, check=True).stdout.rstrip("\n")

    def screen() -> str:
        return asked("capture-pane", "-e", "-p")

    asked("new-session", "-d", "-x", str(_COLUMNS), "-y", str(_ROWS), "-c", str(folder), shell)
    frames: list[Frame] = []
    try:
        while not screen():
            sleep(_EVERY)
        for command in commands:
            asked("send-keys", "-l", command)
            sleep(_EVERY)
            frames.append((_TYPED, screen()))
            asked("send-keys", "Enter")
            sleep(_EVERY)
            while asked("display-message", "-p", "#{pane_current_command}") != "bash":
                frames.append((_EVERY, screen()))
                sleep(_EVERY)
            frames.append((_TYPED, screen()))
        return [*frames, (_LAST, screen())]
    finally:
        asked("kill-server")


def picture(frames: list[Frame]) -> str:
    """The screens as an SVG that shows one after another, again and again; where nothing may move, the last one."""
    shown: list[Frame] = []
    for stands, screen in frames:
        before = shown.pop()[0] if shown and shown[-1][1] == screen else 0.0
        shown.append((before + stands, screen))
    whole = sum(seconds for seconds, _ in shown)
    width, height = round(_COLUMNS * _CELL + 2 * _EDGE), _ROWS * _LINE + 2 * _EDGE
    rules, groups, at = list[str](), list[str](), 0.0
    for n, (seconds, screen) in enumerate(shown):
        begin, end = 100 * at / whole, 100 * (at + seconds) / whole
        rules.append(f"@keyframes f{n}{{0%{{visibility:hidden}}{begin:.3f}%{{visibility:visible}}{end:.3f}%{{visibility:hidden}}}}")
        rules.append(f"#f{n}{{animation:f{n} {whole:.1f}s step-end infinite}}")
        hidden = "" if n == len(shown) - 1 else ' visibility="hidden"'
        groups.append(f'<g id="f{n}"{hidden}>{"".join(_lines(screen))}</g>')
        at += seconds
    text = f"text{{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:{_INK};white-space:pre}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
        f"<title>A terminal: {escape('; '.join(COMMANDS))}</title>\n"
        f"<style>{text}\n@media (prefers-reduced-motion: no-preference){{\n{chr(10).join(rules)}\n}}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>\n{chr(10).join(groups)}\n</svg>\n'
    )


def _lines(screen: str) -> Iterator[str]:
    """A text element a line: words of one colour are one span, which takes the width of its cells."""
    from rich.console import Console  # to record alone: whoever reads this module for its names needs none of it
    from rich.text import Text

    console = Console(color_system="truecolor", width=_COLUMNS)
    for row, line in enumerate(Text.from_ansi(screen).split()):
        at, spans = 0, list[str]()
        for segment in line.render(console):
            style, cells = segment.style, len(segment.text)
            colour = "" if style is None or style.color is None else f' fill="{style.color.get_truecolor().hex}"'
            weight = ' font-weight="bold"' if style is not None and style.bold else ""
            if segment.text.strip():
                place = f'x="{_EDGE + at * _CELL:.0f}" textLength="{cells * _CELL:.0f}" lengthAdjust="spacingAndGlyphs"'
                spans.append(f"<tspan {place}{colour}{weight}>{escape(segment.text)}</tspan>")
            at += cells
        if spans:
            yield f'<text y="{_EDGE + 14 + row * _LINE}">{"".join(spans)}</text>'


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = (ROOT / "configs" / "demo" / "questions.jsonl").read_text(encoding="utf-8").splitlines()[:_QUESTIONS]
        (folder / "questions.jsonl").write_text("\n".join([*questions, ""]), encoding="utf-8")
        (folder / "job.yaml").write_text(_JOB, encoding="utf-8")
        PICTURE.write_text(picture(recorded(COMMANDS, folder)), encoding="utf-8")
