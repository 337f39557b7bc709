"""What the cells of a notebook call: expect_error, check, verdict; and the figure style."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils import check, claims, expect_error, verdict
from utils.claims import ledger


def test_expect_error_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with expect_error(ValueError):
        raise ValueError("first line\nsecond line")
    with expect_error(RuntimeError, words=3):
        raise RuntimeError("one two three four five")
    with expect_error():
        raise KeyError
    assert capsys.readouterr().out == "ValueError: first line\nRuntimeError: one two three …\nKeyError: \n"


def test_expect_error_fails_where_nothing_is_raised() -> None:
    with pytest.raises(AssertionError, match="meant to raise ValueError, and it ran"), expect_error(ValueError):
        pass


def test_expect_error_lets_another_error_through() -> None:
    with pytest.raises(ZeroDivisionError), expect_error(ValueError):
        _ = 1 / 0


def double(x: float) -> float:
    raise NotImplementedError


def test_check_tells_open_right_and_wrong_apart(capsys: pytest.CaptureFixture[str]) -> None:
    claims_about_two = {"f(2) is 4": lambda f: f(2) == 4, "f(3) is 6": lambda f: f(3) == 6}
    check(double, claims_about_two)
    assert capsys.readouterr().out == "Open: write double, then run this cell again.\n"
    check(lambda x: 2 * x, claims_about_two)
    assert capsys.readouterr().out == "✓ f(2) is 4\n✓ f(3) is 6\n"
    check(lambda x: x**2, claims_about_two)
    assert capsys.readouterr().out == "✓ f(2) is 4\n✗ f(3) is 6\n"
    check(lambda x: x.missing, claims_about_two)
    assert "✗ f(2) is 4  (AttributeError: 'int' object has no attribute 'missing')" in capsys.readouterr().out


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "announced.toml"
    path.write_text(
        '[[row]]\nid = "2.14-polar"\nrelease = "2.14"\nsentence = "It does."\n'
        'needs = ""\nnotebook = "06_linalg_polar"\n'
    )
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("sentence", "sentnce"), "row 1 .*sentence, sentnce"),
        (('id = "2.14-polar"\n', ""), "row 1 .*no id.*id"),
        (("", None), "stands there twice"),
    ],
)
def test_a_ledger_that_is_wrong_says_where(rows: Path, change: tuple, words: str) -> None:
    text = rows.read_text()
    rows.write_text(text * 2 if change[1] is None else text.replace(*change))
    with pytest.raises(ValueError, match=words):
        ledger(rows)


def test_the_style_names_only_what_matplotlib_knows() -> None:
    import matplotlib

    from utils.figures import PALETTE, STYLE

    assert set(STYLE) <= set(matplotlib.rcParams)
    assert len(set(PALETTE)) == len(PALETTE)
    assert all(matplotlib.colors.is_color_like(c) for c in PALETTE)
