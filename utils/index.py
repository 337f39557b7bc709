"""What README says of the notebooks, written from the notebooks, the ledger and the last measurement: `make index`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from utils import gate, versions
from utils.catalog import Tutorial, all_notebooks, describe
from utils.claims import DIFFERS, HOLDS, NEEDS, PLANNED, Answer, answers, standings
from utils.paths import ROOT, replace_file
from utils.versions import FAILS, LACKS, RUNS, Under

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
MARK = {RUNS: "✓ runs", LACKS: "says what is missing", FAILS: "✗ fails"}


def needs_in_words(told: Tutorial) -> str:
    """What the notebook runs on: always a CPU, and more where it has cells for it."""
    words = [need.word for spec in told.needs for need in gate.parse(spec)]
    more = dict.fromkeys(IN_WORDS[word] for word in words if word in IN_WORDS)
    return "any CPU" + (f"; more on {', '.join(more)}" if more else "")


def repository(folder: Path = ROOT) -> str | None:
    """owner/name on GitHub, of git's origin, or None: a Binder link needs to know where to clone."""
    try:
        done = subprocess.run(["git", "remote", "get-url", "origin"], cwd=folder, capture_output=True, text=True)
    except OSError:  # no git
        return None
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?/?$", done.stdout.strip())
    return found[1] if found else None


def linked(readme: str) -> str | None:
    """The repository that README's Binder links launch, or None if it has none."""
    found = re.search(r"mybinder\.org/v2/gh/([^/]+/[^/]+)/", readme)
    return found[1] if found else None


def binder_link(path: Path, origin: str) -> str:
    """The address that launches a notebook in JupyterLab on mybinder.org."""
    return f"https://mybinder.org/v2/gh/{origin}/HEAD?urlpath={quote(f'lab/tree/notebooks/{path.name}', safe='')}"


def tally(found: Sequence[Answer]) -> Counter[str]:
    """How many rows of the ledger stand where."""
    return Counter(standings(found).values())


def counts(found: Sequence[Answer]) -> str:
    """The ledger in one sentence."""
    n = tally(found)
    releases = Counter(answer.row.release for answer in found if answer.standing == PLANNED)
    later = ", ".join(f"{count} of {release}" for release, count in sorted(releases.items(), key=_release))
    return (
        f"Of {sum(n.values())} announced features, {n[HOLDS]} **hold** as announced, {n[DIFFERS]} **differ**, "
        f"{n[NEEDS]} have only cells that **need hardware** and have not run on it yet, and {n[PLANNED]} are planned"
        + (f" ({later})." if later else ".")
    )


def _release(count: tuple[str, int]) -> Version:
    return Version(count[0])


def table(notebooks: Sequence[Tutorial], found: Sequence[Answer], column: Under | None, origin: str | None) -> str:
    """The table of notebooks in Markdown. `column` has the seconds and megabytes that they took."""
    heads = ["", "notebook", "since", "runs on", "took", "announced and shipped", *(["launch"] if origin else [])]
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), f"|{' --- |' * len(heads)}"]
    for told in notebooks:
        of_it = Counter(standings(a for a in found if a.row.notebook == told.name).values())
        rows = "<br>".join(f"{word}: {of_it[word]}" for word in (HOLDS, DIFFERS, NEEDS) if of_it[word])
        measured = column.notebooks.get(told.name) if column else None
        name = (
            f"**[{told.title}](notebooks/{told.path.name})**<br>{told.summary}<br><sub>{' · '.join(told.topics)}</sub>"
        )
        took = f"{measured.seconds:.0f} s<br>{measured.mb / 1000:.1f} GB" if measured else ""
        cells = [told.name[:2], name, told.since, needs_in_words(told), took, rows]
        cells += [f"[Binder]({binder_link(told.path, origin)})"] if origin else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def truth(columns: Sequence[Under]) -> str:
    """The table of notebooks by release of torch, in Markdown."""
    names = sorted({name for column in columns for name in column.notebooks})
    lines = [
        f"| | {' | '.join(f'torch {Version(c.torch).public}' for c in columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name in names:
        states = [MARK[c.notebooks[name].state] if name in c.notebooks else "not run" for c in columns]
        lines.append(f"| {name[:2]} | {' | '.join(states)} |")
    days = ", ".join(f"{Version(c.torch).public} on {c.date}" for c in columns)
    return (
        "\n".join(lines) + f"\n\nRun by `make versions`: {days}. A notebook that *says what is missing* skips the "
        "cells that need it, with the name that the release lacks, and runs the rest."
    )


def text(
    notebooks: Sequence[Tutorial], found: Sequence[Answer], columns: Sequence[Under], origin: str | None = None
) -> str:
    """All that stands between the markers."""
    parts = [counts(found), table(notebooks, found, columns[-1] if columns else None, origin)]
    if columns:
        machine = columns[-1].machine
        parts += [
            f"*took*: alone or two at once, with compiled code kept from an earlier run, on {machine}.",
            truth(columns),
        ]
    return "\n\n".join(parts)


def updated(readme: str, generated: str) -> str:
    """README with what stands between its two markers written again. Raises ValueError if a marker is missing."""
    if readme.count(START) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md needs the line {START!r} once, and after it {END!r}")
    head, rest = readme.split(START)
    return f"{head}{START}\n{generated}\n{END}{rest.split(END)[1]}"


def now(origin: str | None) -> str:
    """What README has to say today. Raises ValueError for a ledger or a measurement that cannot be read."""
    return text([describe(p) for p in all_notebooks()], answers(), versions.load(), origin)


def main() -> int:
    """Write README.md again; returns the exit status."""
    path = ROOT / "README.md"
    readme = path.read_text("utf-8")
    origin = repository() or linked(readme)  # a clone of a clone keeps the links
    replace_file(path, updated(readme, now(origin)))
    if origin is None:
        print("README.md has no Binder links: git's origin is not on GitHub")
    return 0


if __name__ == "__main__":
    sys.exit(main())
