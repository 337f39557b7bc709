"""The first page: what its figure of changes says is what the cells below it ask for."""

from __future__ import annotations

import ast

from utils import gate
from utils.catalog import parse_cell, read
from utils.paths import NOTEBOOKS

PAGE = read(NOTEBOOKS / "00_start_here.ipynb")


def test_each_change_has_a_cell_that_asks_for_the_release_it_came_with() -> None:
    """So `make versions` runs the cell under every release that the figure shows in blue, and would see it fail."""
    [drawn] = [c for c in PAGE.cells if c.cell_type == "code" and "FIRST_SEEN = {" in c.source]
    told = next(
        node.value
        for node in parse_cell(drawn.source).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "FIRST_SEEN"
    )
    asked = {}
    for note, cell in zip(PAGE.cells, PAGE.cells[1:], strict=False):
        if note.cell_type == "markdown" and note.source.startswith("**") and cell.cell_type == "code":
            [need] = gate.parse(gate.directive(cell.source) or "")
            asked[note.source.lower()] = str(need)
    first_seen = ast.literal_eval(told)
    assert len(first_seen) == len(asked) >= 10
    for change, release in first_seen.items():
        [need] = [need for note, need in asked.items() if note.startswith(f"**{change.lower()}")]
        assert need == f"torch>={release}", change
