"""Choosing notebooks, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import text
from nbformat.v4 import new_code_cell

from utils.catalog import SelectionError, cell_requires, code_cells, describe, parameters, read, select


@pytest.fixture
def three(write: Callable[..., Path], tmp_path: Path) -> Path:
    for name in ("01_switch", "06_polar", "16_small_apis"):
        write(f"{name}.ipynb", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], ["01_switch", "06_polar", "16_small_apis"]),
        (["06"], ["06_polar"]),
        (["6"], ["06_polar"]),
        (["polar", "switch"], ["06_polar", "01_switch"]),
        (["06_polar.ipynb", "6"], ["06_polar"]),
        (["APIS"], ["16_small_apis"]),
    ],
)
def test_select(three: Path, names: list[str], chosen: list[str]) -> None:
    assert [p.stem for p in select(names, three)] == chosen


def test_select_takes_a_path(three: Path) -> None:
    assert select([str(three / "01_switch.ipynb")], three / "elsewhere") == [three / "01_switch.ipynb"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("06_pollar", "did you mean 06_polar"),
        ("99", "fits no notebook"),
        ("s", "fits 2 notebooks .*01_switch"),
        ("", "no"),
        ("elsewhere/06_polar.ipynb", "there is no notebook elsewhere/06_polar.ipynb"),
    ],
)
def test_select_says_what_there_is(three: Path, name: str, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        select([name], three)


def test_describe(write: Callable[..., Path]) -> None:
    path = write(
        "01_a.ipynb",
        text("# Try a thing\n\nMore."),
        "from utils import setup\nsetup(requires='symbol:torch.linalg.polar')",
        "#| requires: mps, macos>=15\n1",
        "#| requires: cuda\n1",
        "#| requires: cuda\n2",
        summary="It tries.",
        since="2.14",
        budget_mb=900,
    )
    told = describe(path)
    assert (told.name, told.title, told.summary, told.since) == ("01_a", "Try a thing", "It tries.", "2.14")
    assert (told.budget_seconds, told.budget_mb) == (60, 900)
    assert told.needs == ("symbol:torch.linalg.polar", "mps, macos>=15", "cuda")
    whole = "symbol:torch.linalg.polar"
    specs = [specs for _, specs in cell_requires(read(path))]
    assert specs == [(None, None), (whole, "mps, macos>=15"), (whole, "cuda"), (whole, "cuda")]


def test_parameters_are_the_literals_of_the_tagged_cell(write: Callable[..., Path]) -> None:
    tagged = new_code_cell("A = 3  # rows\nB = 'x'  # name\nC = [1, 2.5]", metadata={"tags": ["parameters"]})
    nb = read(write("01_a.ipynb", "Z = 1", tagged, "Y = 2"))
    assert parameters(nb) == {"A": 3, "B": "x", "C": [1, 2.5]}
    assert len(code_cells(nb)) == 3
