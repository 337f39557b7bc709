"""Announced against shipped: a notebook's code says of an announced feature whether the wheel does it.

The rows are in `notebooks/announced.toml`. `verdict` prints one stable line, and emits the same as a MIME output
that tests, the index and the batch report read back.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from utils.paths import LEDGER

VERDICT_MIME = "application/vnd.whatsnew.verdict+json"


@dataclass(frozen=True)
class Row:
    """One announced feature, in our own words."""

    id: str
    release: str
    sentence: str
    needs: str
    notebook: str
    refs: tuple[int, ...] = ()  # pull requests or issues of pytorch/pytorch


def ledger(path: Path = LEDGER) -> dict[str, Row]:
    """The rows by id. Raises ValueError that names the row and field if the file is not as it should be."""
    rows: dict[str, Row] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text("utf-8")).get("row", []), 1):
        known = {"id", "release", "sentence", "needs", "notebook", "refs"}
        if wrong := (set(entry) - known) | ({"id", "release", "sentence", "needs", "notebook"} - set(entry)):
            raise ValueError(
                f"{path.name}, row {number} ({entry.get('id', 'no id')}): check {', '.join(sorted(wrong))}"
            )
        if entry["id"] in rows:
            raise ValueError(f"{path.name}, row {number}: {entry['id']} stands there twice")
        rows[entry["id"]] = Row(**entry | {"refs": tuple(entry.get("refs", ()))})
    return rows


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

    word = "holds" if holds else "differs"
    text = f"{row_id} · {word}: {rows[row_id].sentence}" + (f"\n    {note}" if note else "")
    _display(text, VERDICT_MIME, {"row": row_id, "verdict": word, "note": note})
