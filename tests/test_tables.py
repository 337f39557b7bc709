"""The tables of the start page."""

from __future__ import annotations

from typing import Any

import pytest

from utils import tables
from utils.claims import DIFFERS, HOLDS, NEEDS, PLANNED, Answer, Row
from utils.tables import chosen, show_ledger, show_markdown

ONE = Row("2.14-polar", "2.14", "It does <this>.", "", "06_linalg_polar", ("cpu", "cuda"), ("linalg",), (185837,))
TWO = Row("2.15-fp8-mps", "2.15", "It is.", "mps", "planned", ("mps",), ("low precision", "serving"))
FOUND = [Answer(ONE, HOLDS, "well", "cpu"), Answer(ONE, DIFFERS, "slow & odd", "cuda"), Answer(TWO, PLANNED)]


@pytest.mark.parametrize(
    ("wish", "rows"),
    [
        ({}, ["2.14-polar", "2.15-fp8-mps"]),
        ({"release": "2.14"}, ["2.14-polar"]),
        ({"platform": "mps"}, ["2.15-fp8-mps"]),
        ({"topic": "serving"}, ["2.15-fp8-mps"]),
        ({"topic": "serving", "release": "2.14"}, []),
    ],
)
def test_rows_are_chosen(wish: dict[str, str], rows: list[str]) -> None:
    assert [of_row[0].row.id for of_row in chosen(FOUND[::-1], **wish)] == rows


@pytest.mark.parametrize("wish", [{"release": "2.13"}, {"platform": "gpu"}, {"topic": "speed"}])
def test_a_wish_that_nothing_can_meet_is_an_error(wish: dict[str, str]) -> None:
    [(name, value)] = wish.items()
    with pytest.raises(ValueError, match=f"there is no {name} '{value}'; choose one of "):
        chosen(FOUND, **wish)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    import IPython.display

    found: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: found.append(data))
    return found


def test_the_ledger_as_text_and_as_a_page(shown: list[Any]) -> None:
    show_ledger(FOUND)
    text, page = shown[0]["text/plain"], shown[0]["text/html"]
    assert text.splitlines()[0].split() == ["2.14-polar", "differs", "cpu,", "cuda", "06_linalg_polar"]
    assert text.endswith("2 rows")
    assert page.count("<tr>") == 3
    assert "It does &lt;this&gt;." in page and "slow &amp; odd" in page and "well" in page
    assert 'href="06_linalg_polar.ipynb"' in page and "planned.ipynb" not in page
    assert f"{tables.PULL}185837" in page and "<script" not in page


def test_what_a_verdict_waits_for_is_told_apart_from_a_verdict(shown: list[Any]) -> None:
    show_ledger([Answer(ONE, HOLDS, "well", "cpu"), Answer(ONE, NEEDS, "mps, macos>=15")])
    page = shown[0]["text/html"]
    assert "<b>holds</b><br><small>well</small><br><small>not run yet: needs mps, macos&gt;=15</small>" in page


def test_markdown(shown: list[Any]) -> None:
    show_markdown(["a", "b"], [("1", "[two](2.ipynb)")])
    assert shown[0].data == "| a | b |\n| :-- | :-- |\n| 1 | [two](2.ipynb) |"
