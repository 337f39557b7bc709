"""The ledger: its file, what `verdict` takes, and what is read back from the stored notebooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_output

from utils import claims, verdict
from utils.claims import DIFFERS, HOLDS, NEEDS, PLANNED, VERDICT_MIME, Answer, Row, answers, ledger, standings

ROW = """[[row]]
id = "2.14-polar"
release = "2.14"
sentence = "It does."
needs = ""
notebook = "06_linalg_polar"
platforms = ["cpu", "cuda"]
topics = ["linalg"]
refs = [185837]
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "announced.toml"
    path.write_text(ROW)
    monkeypatch.setattr(claims, "LEDGER", path)
    monkeypatch.setattr(claims.ledger, "__defaults__", (path,))
    return path


@pytest.mark.parametrize(
    ("holds", "note", "printed"),
    [
        (True, "", "2.14-polar · holds: It does.\n"),
        (True, "on CPU", "2.14-polar · holds: It does.\n    on CPU\n"),
        (False, "it does not", "2.14-polar · differs: It does.\n    it does not\n"),
    ],
)
def test_verdict(rows: Path, capsys: pytest.CaptureFixture[str], holds: bool, note: str, printed: str) -> None:
    verdict("2.14-polar", holds=holds, note=note)
    assert capsys.readouterr().out == printed


def test_a_verdict_is_computed_and_about_a_row(rows: Path) -> None:
    with pytest.raises(KeyError, match=r"did you mean '2\.14-polar'"):
        verdict("2.14-pole", holds=True)
    with pytest.raises(TypeError, match="must be a bool"):
        verdict("2.14-polar", holds="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="what does the wheel do instead"):
        verdict("2.14-polar", holds=False)


def test_a_row_is_read(rows: Path) -> None:
    assert ledger(rows) == {
        "2.14-polar": Row(
            "2.14-polar", "2.14", "It does.", "", "06_linalg_polar", ("cpu", "cuda"), ("linalg",), (185837,)
        )
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sentence", "sentnce", "row 1 .*there is no field sentnce"),
        ('id = "2.14-polar"\n', "", r"row 1 \(no id\): it lacks id"),
        ("topics", "#", "it lacks topics"),
        ('"It does."', '" "', "sentence must be a text"),
        ('"It does."', "3", "sentence must be a text"),
        ('release = "2.14"', 'release = "2.13"', "release must be one of 2.8, 2.12, 2.14, 2.15"),
        ('id = "2.14-polar"', 'id = "polar"', "and id begin with it"),
        ('["cpu", "cuda"]', '["cpu", "gpu"]', "platforms must be a list of some of cpu, cuda, rocm, xpu, mps"),
        ('["cpu", "cuda"]', "[]", "platforms must be a list"),
        ('["cpu", "cuda"]', '["cpu", "cpu"]', "platforms must be a list"),
        ('["linalg"]', '"linalg"', "topics must be a list"),
        ("[185837]", '["185837"]', "refs must be a list of numbers"),
        ('needs = ""', 'needs = "cdua"', "needs: unknown requirement 'cdua': did you mean 'cuda'"),
        ("", None, "stands there twice"),
    ],
)
def test_a_ledger_that_is_wrong_says_where(rows: Path, old: str, new: str | None, words: str) -> None:
    text = rows.read_text()
    rows.write_text(text * 2 if new is None else text.replace(old, new))
    with pytest.raises(ValueError, match=words):
        ledger(rows)


def stored(word: str, note: str = "") -> Any:
    return new_output("display_data", {VERDICT_MIME: {"row": "2.14-polar", "verdict": word, "note": note}})


CALL = "verdict('2.14-polar', holds=works)"


def test_answers_are_what_the_notebooks_store(rows: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    row = ledger(rows)["2.14-polar"]
    assert answers(tmp_path) == [Answer(row, PLANNED)], "its notebook is missing"
    gated = new_code_cell(f"#| requires: cuda\n{CALL}")
    write("06_linalg_polar.ipynb", new_code_cell(CALL, outputs=[stored(HOLDS, "well")]), gated)
    found = answers(tmp_path)
    assert found == [Answer(row, HOLDS, "well", "cpu"), Answer(row, NEEDS, "cuda")]
    assert standings(found) == {"2.14-polar": HOLDS}
    gated = new_code_cell(gated.source, outputs=[stored(DIFFERS, "slow")])
    gated.metadata["recorded"] = {"device": "2 x cuda 9.0 (NVIDIA H200)"}
    write("06_linalg_polar.ipynb", new_code_cell(CALL, outputs=[stored(HOLDS)]), gated)
    found = answers(tmp_path)
    assert found[1] == Answer(row, DIFFERS, "slow", "cuda")
    assert standings(found) == {"2.14-polar": DIFFERS}
