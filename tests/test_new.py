"""The skeleton of a notebook keeps to every rule but those that its author has to fill."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from utils import lint, new
from utils.catalog import read


def test_it_lacks_only_what_must_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "07_last.ipynb").write_text("{}")
    monkeypatch.setattr(new.place, "__defaults__", (tmp_path,))
    assert new.main(["Sort with torch.sort"]) == 0
    path = tmp_path / "08_sort_with_torch_sort.ipynb"
    found = lint.lint(path)
    assert {problem.partition(":")[0] for problem in found} == {"filled"}
    assert len(found) > 20

    nb = read(path)
    nb.metadata.tutorial |= {"since": "2.14", "summary": "It sorts.", "topics": ["sorting"]}
    for cell in nb.cells:
        cell.source = re.sub(r"\bFILL\b", "done", cell.source)
    nbformat.write(nb, path)
    assert lint.lint(path) == [], "filled in, nothing is wrong with it"


@pytest.mark.parametrize(
    ("title", "name"), [("Sort", "sort"), ("Run 2.15's `x`", "run_2_15_s_x"), ("a " * 9, "a_" * 5 + "a")]
)
def test_file_names(title: str, name: str) -> None:
    assert new.slug(title) == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "needs a title"),
        (["Sort", "--number", "6"], "06 is taken by 06_"),
        (["Sort", "--number", "-3"], "two digits"),
        (["Sort", "--number", "100"], "two digits"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    assert new.main(arguments) == 2
    assert words in capsys.readouterr().err
