"""Each parameter of each notebook changes something that the reader sees. Apart from the other tests of the
notebooks so that both cores are busy: a module's tests stay together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from test_notebooks import PATHS, by_name, preamble, run

from utils.catalog import code_cells, describe, parameters, read, tags
from utils.lint import IGNORED, names, sections
from utils.refresh import _comparable

WITH_PARAMETERS = [path for path in PATHS if parameters(read(path))]


@pytest.mark.parametrize("path", WITH_PARAMETERS, ids=by_name)
def test_each_parameter_changes_something(path: Path) -> None:
    nb = read(path)
    [tagged] = [c for c in code_cells(nb) if "parameters" in tags(c)]
    variations = describe(path).variations
    assert set(variations) == set(parameters(nb))
    parts = {title: cells for title, cells in sections(nb).items() if title not in ("", "Setup")}
    cells, spans = preamble(nb), {}
    for name, value in variations.items():
        using = [cells for cells in parts.values() if any(name in names(c.source)[0] for c in cells)]
        chosen = [cell for part in using or parts.values() for cell in part]
        begin = len(cells)
        cells += chosen
        cells.append(new_code_cell(f"{name} = {value!r}"))
        cells += chosen
        cells.append(tagged)
        spans[name] = (begin, len(chosen))
    done = run(path, cells)
    for name, (begin, count) in spans.items():
        before, after = done[begin : begin + count], done[begin + count + 1 : begin + 2 * count + 1]
        assert any(differ(a, b) for a, b in zip(before, after, strict=True)), f"{name} changes no output"


def differ(one: Any, other: Any) -> bool:
    """Do two runs of a cell show something else? Timings do not count."""
    if IGNORED in tags(one):
        return False
    pictures = [[o.get("data", {}).get("image/png") for o in cell.outputs] for cell in (one, other)]
    return _comparable(one.outputs) != _comparable(other.outputs) or pictures[0] != pictures[1]
