"""README's table of notebooks, written from what the notebooks say of themselves: `python -m utils.index`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from utils import gate
from utils.catalog import Tutorial, all_notebooks, describe
from utils.paths import ROOT

START, END = "<!-- index: written by `make index` -->", "<!-- end of index -->"


IN_WORDS = {
    "cuda": "NVIDIA GPUs",
    "cuda_runtime": "NVIDIA GPUs",
    "mps": "Apple GPUs",
    "xpu": "Intel GPUs",
    "rocm": "AMD GPUs",
    "accelerator": "any GPU",
    "accelerators": "several GPUs",
    "amx": "CPUs with AMX",
}


def needs_in_words(told: Tutorial) -> str:
    """What the notebook runs on: always a CPU, and more where it has cells for it."""
    words = [need.word for spec in told.needs for need in gate.parse(spec)]
    more = dict.fromkeys(IN_WORDS[word] for word in words if word in IN_WORDS)
    return "any CPU" + (f"; more on {', '.join(more)}" if more else "")


def table(notebooks: Sequence[Tutorial]) -> str:
    """The table in Markdown."""
    lines = ["| | notebook | since | runs on |", "| --- | --- | --- | --- |"]
    for told in notebooks:
        link = f"[{told.title}](notebooks/{told.path.name})"
        lines.append(f"| {told.name[:2]} | **{link}**<br>{told.summary} | {told.since} | {needs_in_words(told)} |")
    return "\n".join(lines)


def updated(readme: str, notebooks: Sequence[Tutorial]) -> str:
    """README with the table between its two markers written again. Raises ValueError if a marker is missing."""
    if readme.count(START) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md needs the line {START!r} once, and after it {END!r}")
    head, rest = readme.split(START)
    return f"{head}{START}\n{table(notebooks)}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Write README.md again; returns the exit status."""
    path: Path = ROOT / "README.md"
    path.write_text(updated(path.read_text("utf-8"), [describe(p) for p in all_notebooks()]), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
