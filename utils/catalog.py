"""The notebooks as data: which there are, what they say of themselves, what their cells need."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import gate
from utils.hardware import Machine
from utils.kernels import skip_iri_grammar
from utils.paths import NOTEBOOKS

#: What a notebook may use, unless its `tutorial` metadata says less: what Binder gives. Seconds on two cores, MB.
BUDGET_SECONDS, BUDGET_MB = 60, 1500


class SelectionError(ValueError):
    """No such notebook; the message says which there are."""


@dataclass(frozen=True)
class Tutorial:
    """What a notebook says of itself, in its `tutorial` metadata and its first heading."""

    path: Path
    title: str
    summary: str
    since: str
    topics: tuple[str, ...]
    budget_seconds: float
    budget_mb: float
    variations: dict[str, Any]  # parameter -> another value for it, with which an output must change
    needs: tuple[str, ...]  # what its gated cells ask for, each once, in order

    @property
    def name(self) -> str:
        return self.path.stem


def read(path: Path) -> Any:
    """The notebook as an nbformat node (version 4)."""
    skip_iri_grammar()
    import nbformat

    return nbformat.read(path, as_version=4)


def code_cells(nb: Any) -> list[Any]:
    """The code cells in order; the first is number 1, as JupyterLab counts on Run All."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def source_sha256(cell: Any) -> str:
    return hashlib.sha256(cell.source.encode()).hexdigest()


def parse_cell(source: str) -> ast.Module:
    """The cell's code as a syntax tree, magics and all. Raises SyntaxError."""
    from IPython.core.inputtransformer2 import TransformerManager

    source = re.sub(r"(?m)^(\s*)%+(time|timeit|capture)\b(?: *-\S+)*[ \t]*", r"\1", source)  # their argument is code
    return ast.parse(TransformerManager().transform_cell(source))


def parameters(nb: Any) -> dict[str, Any]:
    """The parameters and their defaults: the plain literals that the cell tagged `parameters` assigns."""
    found = {}
    for cell in code_cells(nb):
        if "parameters" in tags(cell):
            for node in parse_cell(cell.source).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def notebook_requires(nb: Any) -> str | None:
    """What the whole notebook needs: the argument of `setup(…)`."""
    for cell in code_cells(nb):
        if "setup(" not in cell.source:
            continue
        for node in ast.walk(parse_cell(cell.source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "setup":
                given = [*node.args, *(k.value for k in node.keywords if k.arg == "requires")]
                return ast.literal_eval(given[0]) if given else None
    return None


def cell_requires(nb: Any) -> Iterator[tuple[Any, tuple[str | None, str | None]]]:
    """Each code cell with what its notebook needs and what it asks for itself.

    The notebook's need starts behind the setup cell, which always runs: it puts the gate in place.
    """
    whole, behind_setup = notebook_requires(nb), False
    for cell in code_cells(nb):
        yield cell, (whole if behind_setup else None, gate.directive(cell.source))
        behind_setup = behind_setup or "setup(" in cell.source


def asking(nb: Any) -> dict[int, list[str]]:
    """The cells that ask for something, by number from 1, each with what it asks for."""
    specs = {n: list(dict.fromkeys(filter(None, s))) for n, (_, s) in enumerate(cell_requires(nb), 1)}
    return {number: found for number, found in specs.items() if found}


def away(specs: tuple[str | None, str | None], machine: Machine | None = None) -> str | None:
    """Why a cell cannot run on the machine, or None: the notebook's need first, as the gate in the kernel says it."""
    return gate.unmet(specs[0], machine) or gate.unmet(specs[1], machine)


def describe(path: Path) -> Tutorial:
    """Read what a notebook says of itself."""
    nb = read(path)
    told = nb.metadata.get("tutorial", {})
    first = next((c.source for c in nb.cells if c.cell_type == "markdown"), "")
    title = next((line[2:].strip() for line in first.splitlines() if line.startswith("# ")), path.stem)
    specs = [spec for cell in code_cells(nb) if (spec := gate.directive(cell.source))]
    return Tutorial(
        path=path,
        title=title,
        summary=told.get("summary", ""),
        since=told.get("since", ""),
        topics=tuple(told.get("topics", ())),
        budget_seconds=told.get("budget_seconds", BUDGET_SECONDS),
        budget_mb=told.get("budget_mb", BUDGET_MB),
        variations=dict(told.get("variations", {})),
        needs=tuple(dict.fromkeys(filter(None, [notebook_requires(nb), *specs]))),
    )


def all_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    """Every notebook of the collection, by number."""
    return sorted(p for p in folder.glob("*.ipynb") if not p.name.startswith("."))


def select(names: Sequence[str], folder: Path = NOTEBOOKS) -> list[Path]:
    """Notebooks by number (`06`, `6`), name, part of a name (`polar`) or path; all of them for no names.

    Raises SelectionError if a name fits none, or several.
    """
    there = all_notebooks(folder)
    chosen: list[Path] = []
    for name in names or [p.stem for p in there]:
        path = Path(name)
        if path.suffix == ".ipynb" and path.exists():
            chosen.append(path.resolve())
            continue
        if len(path.parts) > 1:  # not a name: it must not stand for a notebook elsewhere that is called the same
            raise SelectionError(f"there is no notebook {name}")
        stem = path.stem if path.suffix == ".ipynb" else name
        fits = [p for p in there if p.stem == stem]
        fits = fits or [p for p in there if stem.isdigit() and p.stem.split("_")[0].lstrip("0") == stem.lstrip("0")]
        fits = fits or [p for p in there if stem and stem.lower() in p.stem.lower()]
        if len(fits) != 1:
            near = difflib.get_close_matches(stem, [p.stem for p in there], n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near and not fits else ""
            listing = ", ".join(p.stem for p in fits or there) or f"no notebook in {folder}"
            raise SelectionError(f"{name!r} fits {len(fits) or 'no'} notebook{'s' * (len(fits) > 1)}{hint} ({listing})")
        chosen += fits
    return list(dict.fromkeys(chosen))
