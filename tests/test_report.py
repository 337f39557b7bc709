"""The report's sums and files, and how progress is shown."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from utils.progress import Progress
from utils.report import Report, Result, read_results


def report(*results: Result, **more: object) -> Report:
    return Report(**{"date": "2026-12-01", "jobs": 2, "wall": 12.0, "finished": True, "results": list(results)} | more)


PASSED = Result("01_a", title="Try <it>", status="passed", seconds=10, cell_seconds=8, cells=3, ran=3, peak_mb=700)
FAILED = Result(
    "02_b",
    status="failed",
    seconds=6,
    cell_seconds=4,
    error={"cell": 2, "what": "E: \x1b[31mno\x1b[0m & <b>", "source": "x"},
)


def test_sums() -> None:
    both = report(PASSED, FAILED)
    assert both.counts == {"passed": 1, "failed": 1}
    assert (both.ok, both.closing) == (False, "1 passed, 1 failed")
    assert both.overhead == pytest.approx(12 * 2 / (8 + 4))
    assert report(PASSED).overhead == pytest.approx(12 * 1 / 8), "one notebook has one place"
    assert report(PASSED).ok
    assert not report().ok and report().overhead is None
    assert not report(Result("03_c")).ok, "a notebook that did not run is no success"


@pytest.mark.parametrize(("seconds", "mb", "broken"), [(59, 1499, 0), (61, 1499, 1), (61, 1501, 2)])
def test_budgets(seconds: float, mb: float, broken: int) -> None:
    result = Result("01_a", status="passed", seconds=seconds, peak_mb=mb, budget_seconds=60, budget_mb=1500)
    assert len(result.over) == broken
    assert ("OVER BUDGET" in result.line) == bool(broken)


def test_files_are_read_back(tmp_path: Path) -> None:
    report(PASSED, FAILED).write(tmp_path, junit=tmp_path / "more.xml")
    assert read_results(tmp_path / "report.json") == {"01_a": PASSED, "02_b": FAILED}
    assert json.loads((tmp_path / "report.json").read_text())["counts"] == {"passed": 1, "failed": 1}
    assert ET.parse(tmp_path / "more.xml").find(".//failure").get("message") == "cell 2: E: [31mno[0m & <b>"
    page = (tmp_path / "report.html").read_text()
    assert "Try &lt;it&gt;" in page and "<b>" not in page.partition("E: ")[2][:40]
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize("content", [None, "{", '{"results": [{"name": "a", "surprise": 1}]}', "[]"])
def test_an_earlier_report_that_cannot_be_read_counts_as_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    assert read_results(tmp_path / "report.json") == {}


@pytest.mark.parametrize(("ci", "bars"), [("", True), ("1", False)])
def test_bars_for_a_person_and_lines_for_a_log(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, ci: str, bars: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("CI", ci)
    path = write("01_a.ipynb", "1", "2", "3")
    with Progress(1) as progress:
        progress.start(PASSED, path)
        progress.tell(PASSED, 3)
        progress.end(PASSED)
    out = capsys.readouterr().out
    assert "[1/1] passed      01_a" in out and "10.0 s    700 MB  3 of 3 cells" in out
    assert ("━" in out) == bars
