"""Announced against shipped: a notebook's code says of an announced feature whether the wheel does it.

The rows are in `notebooks/announced.toml`. `verdict` prints one stable line, and emits the same as a MIME output
that tests, the index and the batch report read back. `answers` is that reading: what the stored notebooks say.
"""

from __future__ import annotations

import ast
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import gate
from utils.catalog import cell_requires, parse_cell, read
from utils.paths import LEDGER, NOTEBOOKS

VERDICT_MIME = "application/vnd.whatsnew.verdict+json"
RELEASES = ("2.8", "2.12", "2.14", "2.15")
PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "mps")
TOPICS = (
    "compile",
    "export",
    "training",
    "serving",
    "distributed",
    "linalg",
    "low precision",
    "autograd",
    "attention",
    "observability",
    "migration",
    "build",
)
HOLDS, DIFFERS, NEEDS, PLANNED = "holds", "differs", "needs hardware", "planned"
STANDINGS = (DIFFERS, HOLDS, NEEDS, PLANNED)  # of several answers to one row, the first of these is the row's


@dataclass(frozen=True)
class Row:
    """One announced feature, in our own words."""

    id: str
    release: str
    sentence: str
    needs: str  # of the claim, in the gate's words; "" where a CPU will do
    notebook: str  # the one that answers, or "planned"
    platforms: tuple[str, ...]  # that it was announced for
    topics: tuple[str, ...]
    refs: tuple[int, ...] = ()  # pull requests or issues of pytorch/pytorch


@dataclass(frozen=True)
class Answer:
    """What a notebook says of a row, at one of its verdicts."""

    row: Row
    standing: str  # one of STANDINGS
    note: str = ""  # what the wheel does, or what the verdict waits for
    platform: str | None = None  # that it was computed on


def ledger(path: Path = LEDGER) -> dict[str, Row]:
    """The rows by id. Raises ValueError that names the row and what to mend if the file is not as it should be."""
    rows: dict[str, Row] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text("utf-8")).get("row", []), 1):
        if problem := _problem(entry):
            raise ValueError(f"{path.name}, row {number} ({entry.get('id', 'no id')}): {problem}")
        if entry["id"] in rows:
            raise ValueError(f"{path.name}, row {number}: {entry['id']} stands there twice")
        rows[entry["id"]] = Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
    return rows


def _problem(entry: Mapping[str, Any]) -> str | None:
    """What is wrong with a row of the ledger's file, or None."""
    texts, lists = ("id", "release", "sentence", "needs", "notebook"), {"platforms": PLATFORMS, "topics": TOPICS}
    if unknown := sorted({*entry} - {*texts, *lists, "refs"}):
        return f"there is no field {', '.join(unknown)}"
    if missing := [name for name in (*texts, *lists) if name not in entry]:
        return f"it lacks {', '.join(missing)}"
    for name in texts:
        if not isinstance(entry[name], str) or (name != "needs" and not entry[name].strip()):
            return f"{name} must be a text"
    if entry["release"] not in RELEASES or not entry["id"].startswith(f"{entry['release']}-"):
        return f"release must be one of {', '.join(RELEASES)}, and id begin with it"
    for name, known in lists.items():
        value = entry[name]
        if not isinstance(value, list) or not value or not set(value) <= set(known) or len(set(value)) < len(value):
            return f"{name} must be a list of some of {', '.join(known)}"
    if not all(type(number) is int and number > 0 for number in entry.get("refs", [])):
        return "refs must be a list of numbers of pull requests or issues"
    try:
        if entry["needs"]:
            gate.parse(entry["needs"])
    except gate.RequirementError as error:
        return f"needs: {error}"
    return None


def verdict(row_id: str, *, holds: bool, note: str = "") -> None:
    """Say of an announced feature whether it holds here, computed by the cell that calls this.

    Args:
        row_id: a row of notebooks/announced.toml.
        holds: what the cell computed, a bool. A string or a tensor is refused: a verdict is not typed in.
        note: what the wheel does instead, or under which condition it holds.

    Raises:
        KeyError: no such row; the message has the nearest id.
        TypeError: `holds` is not a bool.
        ValueError: it does not hold, and no note says what the wheel does instead.
    """
    rows = ledger()
    if row_id not in rows:
        near = difflib.get_close_matches(row_id, rows, n=1)
        raise KeyError(f"{LEDGER.name} has no row {row_id!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not isinstance(holds, bool):
        raise TypeError(f"holds must be a bool that the cell computed, not {type(holds).__name__}")
    if not holds and not note:
        raise ValueError("a verdict that differs needs a note: what does the wheel do instead?")
    from utils.notebook import _display

    word = HOLDS if holds else DIFFERS
    _display(verdict_text(rows[row_id], word, note), VERDICT_MIME, {"row": row_id, "verdict": word, "note": note})


def verdict_text(row: Row, word: str, note: str) -> str:
    """A verdict as the reader sees it."""
    return f"{row.id} · {word}: {row.sentence}" + (f"\n    {note}" if note else "")


def verdict_calls(source: str) -> dict[str, ast.Call]:
    """The calls of `verdict` in a cell, by the row that they are about."""
    calls = [n for n in ast.walk(parse_cell(source)) if isinstance(n, ast.Call) and n.args]
    return {getattr(n.args[0], "value", None): n for n in calls if getattr(n.func, "id", None) == "verdict"}


def answers(folder: Path = NOTEBOOKS, rows: Mapping[str, Row] | None = None) -> list[Answer]:
    """What the stored notebooks say of every row, in the ledger's order: an entry for each verdict of a row.

    A row that no notebook answers has one entry, "planned".
    """
    rows = ledger() if rows is None else rows
    found: dict[str, list[Answer]] = {row_id: [] for row_id in rows}
    for name in dict.fromkeys(row.notebook for row in rows.values() if row.notebook != PLANNED):
        path = folder / f"{name}.ipynb"
        for cell, (_, own) in cell_requires(read(path)) if path.exists() else ():
            for row_id in verdict_calls(cell.source) if "verdict(" in cell.source else ():
                if row_id in rows:
                    found[row_id].append(_stored(rows[row_id], cell, own))
    return [answer for row_id, row in rows.items() for answer in found[row_id] or [Answer(row, PLANNED)]]


def _stored(row: Row, cell: Any, needs: str | None) -> Answer:
    """The answer to a row that stands in a cell's outputs, or what it waits for."""
    for output in cell.outputs:
        data = output.get("data", {}).get(VERDICT_MIME, {})
        if data.get("row") == row.id:
            device = cell.metadata.get("recorded", {}).get("device", "cpu")
            return Answer(row, data["verdict"], data["note"], platform(device))
    return Answer(row, NEEDS, needs or "")


def platform(device: str) -> str:
    """The platform of a device in the machine line's words: `2 x cuda 9.0 (NVIDIA H200)` is "cuda"."""
    return next((name for name in PLATFORMS if name in device.lower()), "cpu")


def standing(found: Iterable[Answer]) -> str:
    """Where a row stands that has these answers: it differs if one of them says so."""
    return min((answer.standing for answer in found), key=STANDINGS.index)


def standings(found: Iterable[Answer]) -> dict[str, str]:
    """Where each row stands, by id, in the ledger's order."""
    by_row: dict[str, list[Answer]] = {}
    for answer in found:
        by_row.setdefault(answer.row.id, []).append(answer)
    return {row_id: standing(of_row) for row_id, of_row in by_row.items()}
