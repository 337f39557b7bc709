"""The collection itself: rules, exercises, binder. nbval, which runs beside this, compares outputs."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from utils.catalog import all_notebooks, away, cell_requires, read, tags
from utils.lint import IGNORED, compared_share, is_tutorial, lint, lint_ledger, sections, solution_code
from utils.notebook import EXERCISE_MIME
from utils.paths import ROOT
from utils.refresh import execute

PATHS = all_notebooks()
TUTORIALS = [path for path in PATHS if is_tutorial(read(path))]
COMPARED_SHARE = 0.9  # of all cells that print, over the collection; raise it when it rises


def by_name(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", PATHS, ids=by_name)
def test_it_keeps_to_the_rules(path: Path) -> None:
    assert lint(path) == []


def test_every_row_of_a_finished_notebook_has_its_verdict() -> None:
    assert lint_ledger() == []


def test_most_of_what_is_printed_is_compared() -> None:
    shares = {path.stem: compared_share(read(path)) for path in TUTORIALS}
    assert sum(shares.values()) / len(shares) >= COMPARED_SHARE, shares


def change_a_digit(nb: Any) -> int:
    """Change the first digit that a compared cell printed, and leave out what comes behind: that cell's number."""
    runs = [(cell, away(needs) is None) for cell, needs in cell_requires(nb)]
    for number, (cell, here) in enumerate(runs, 1):
        for output in cell.outputs if here and IGNORED not in tags(cell) else []:
            if output.output_type == "stream" and (digit := re.search(r"\d", output.text)):
                at = digit.start()
                output.text = output.text[:at] + str((int(digit[0]) + 1) % 10) + output.text[at + 1 :]
                del nb.cells[nb.cells.index(cell) + 1 :]
                return number
    raise LookupError("no compared cell prints a number")


@pytest.mark.parametrize("path", PATHS, ids=by_name)
def test_one_digit_turns_it_red(path: Path, python: Callable[..., Any], tmp_path: Path) -> None:
    nb = read(path)
    number = change_a_digit(nb)
    nbformat.write(nb, tmp_path / path.name)
    plugin = ["-c", "pyproject.toml", "-o", "addopts=", "-p", "utils.testing", "-p", "no:cacheprovider"]
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", f"--junitxml={tmp_path / 'out.xml'}"]
    done = python("pytest", *plugin, *nbval, tmp_path / path.name)
    cases = list(ET.parse(tmp_path / "out.xml").iter("testcase"))
    failed = {case.get("name"): "".join(f.itertext()) for case in cases for f in case if f.tag != "skipped"}
    assert list(failed) == [f"Cell {number}"] and len(cases) == number, done.stdout[-3000:]
    assert "Cell outputs differ" in failed[f"Cell {number}"]


def run(path: Path, cells: list[Any]) -> list[Any]:
    """Run copies of cells in a fresh kernel, in the notebook's folder; returns them with their outputs."""
    copies = [copy.deepcopy(cell) for cell in cells]  # one by one: a cell may stand there twice
    for number, cell in enumerate(copies):
        cell.id, cell.outputs = f"c{number}", []
    execute(new_notebook(cells=copies), path.parent)
    return copies


def preamble(nb: Any) -> list[Any]:
    parts = sections(nb)
    return [*parts.get("", []), *parts.get("Setup", [])]


def verdict_of(cell: Any) -> dict[str, Any]:
    [found] = [o.data[EXERCISE_MIME] for o in cell.outputs if EXERCISE_MIME in o.get("data", {})]
    return found


@pytest.mark.parametrize("path", TUTORIALS, ids=by_name)
def test_solutions_solve_and_stubs_do_not(path: Path) -> None:
    nb = read(path)
    solutions = iter([solution_code(c) for c in nb.cells if "solution" in tags(c)])
    cells, checks = preamble(nb), []
    for cell in sections(nb)["Exercises"]:
        cells.append(cell)
        if "exercise" in tags(cell):
            cells.append(new_code_cell(next(solutions)))
        elif "check(" in cell.source:
            checks.append(len(cells) - 1)
            assert verdict_of(cell)["open"], "the stored output is that of the untouched stub"
    done = run(path, cells)
    for number in checks:
        found = verdict_of(done[number])
        assert found["passed"], done[number].outputs[0].data["text/plain"]


def test_binder_has_what_requirements_have() -> None:
    """The same packages and bounds, but for torch, which is the CPU build there, and `-e .`, which postBuild does."""

    def lines(path: Path) -> set[str]:
        stripped = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
        return {line for line in stripped if line and not line.startswith(("-", "torch"))}

    assert lines(ROOT / "binder" / "requirements.txt") == lines(ROOT / "requirements.txt")
    assert "-e" not in [
        line.split()[0] for line in (ROOT / "binder" / "requirements.txt").read_text().splitlines() if line
    ]
