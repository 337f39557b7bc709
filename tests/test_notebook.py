"""What the cells of a notebook call: expect_error, check; and the figure style."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from utils import check, expect_error
from utils.notebook import NOTICE_MIME
from utils.refresh import execute, normalise


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


def test_the_style_names_only_what_matplotlib_knows() -> None:
    import matplotlib

    from utils.figures import PALETTE, STYLE

    assert set(STYLE) <= set(matplotlib.rcParams)
    assert len(set(PALETTE)) == len(PALETTE)
    assert all(matplotlib.colors.is_color_like(c) for c in PALETTE)


def test_a_cold_start_says_that_compiling_takes_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is stored in a notebook does not."""
    folder = tmp_path / "inductor"
    folder.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    told = {"display": [], "stored": []}
    for _ in ("cold", "warm"):
        nb = new_notebook(cells=[new_code_cell("from utils import setup\nsetup()")])
        execute(nb, tmp_path)
        told["display"].append(NOTICE_MIME in str(nb.cells[0].outputs))
        normalise(nb)
        told["stored"].append(NOTICE_MIME in str(nb.cells[0].outputs))
        (folder / "kernel.so").touch()
    assert told == {"display": [True, False], "stored": [False, False]}
