"""A verdict follows from what its cell computes: another world, another verdict.

For each verdict that is computed on a CPU, a line that changes what the cell looks at, run before it in a kernel, must
turn the stored word into the other one.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from test_notebooks import by_name, preamble, run

from utils import gate
from utils.catalog import all_notebooks, away, cell_requires, read
from utils.claims import DIFFERS, HOLDS, VERDICT_MIME, verdict_calls
from utils.lint import sections

#: row -> what happens to the world, in words that a kernel understands. Later lines see the earlier ones' worlds.
OTHER_WORLDS = {
    "2.14-switch": "torch.switch = switch",
    "2.14-dynamic-spec": "Var = ShapeVar\nShapeVar = lambda name, min, max: Var(name, min=min, max=max // 2)",
    "2.12-accel-graph": "backends = simdev.graph_backends()\nsimdev.graph_backends = lambda: [*backends, 'CUDA']",
    "2.12-graph-impl": "simdev.graph_backends = lambda: []",
    "2.12-is-capturing": "torch.accelerator.current_stream = lambda: torch.Stream(device='cpu')",
    "2.14-polar": (
        "def other(A):\n"
        "    H = torch.linalg.matrix_sqrth(A.mH @ A)\n"
        "    return torch.linalg.solve(H, A.mH).mH, H\n\n"
        "torch.linalg.polar = other"
    ),
    "2.14-sqrth": "root_of = torch.linalg.matrix_sqrth\ntorch.linalg.matrix_sqrth = lambda A: 2 * root_of(A)",
    "2.12-mx-export": "torch.equal = lambda one, other: False",
}


def computed_here(path: Path) -> dict[str, Any]:
    """The verdicts of a notebook that are computed without other hardware: row -> cell."""
    cells = [(c, own) for c, (_, own) in cell_requires(read(path)) if not gate.asks_for_hardware(own)]
    return {row: cell for cell, _ in cells for row in verdict_calls(cell.source)}


BOOKS = {path: rows for path in all_notebooks() if (rows := computed_here(path))}


def test_every_verdict_has_another_world() -> None:
    assert set(OTHER_WORLDS) == set(itertools.chain.from_iterable(BOOKS.values()))


@pytest.mark.parametrize("path", BOOKS, ids=by_name)
def test_the_verdict_changes_with_the_world(path: Path) -> None:
    nb = read(path)
    if reason := next(filter(None, (away(specs) for c, specs in cell_requires(nb) if verdict_calls(c.source))), None):
        if not any(word in reason for word in ("cuda", "mps", "xpu")):
            pytest.skip(reason)
    cells = [*preamble(nb), *(c for c in sections(nb)["Announced and shipped"] if not verdict_calls(c.source))]
    for row, cell in BOOKS[path].items():
        cells += [new_code_cell(OTHER_WORLDS[row]), cell]
    done = run(path, cells)
    told = [o.data[VERDICT_MIME] for c in done for o in c.outputs if VERDICT_MIME in o.get("data", {})]
    stored = {
        o.data[VERDICT_MIME]["row"]: o.data[VERDICT_MIME]["verdict"]
        for cell in BOOKS[path].values()
        for o in cell.outputs
        if VERDICT_MIME in o.get("data", {})
    }
    assert {t["row"]: t["verdict"] for t in told} == {r: HOLDS if w == DIFFERS else DIFFERS for r, w in stored.items()}
