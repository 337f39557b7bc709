"""The report's sums and files, and how progress is shown."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from utils.jobs import KILLED
from utils.progress import Progress
from utils.report import Report, Result, merge, read_results


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


def test_a_notebook_that_starts_again_has_one_bar(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CI", "")
    path = write("01_a.ipynb", "1", "2", "3")
    with Progress(2) as progress:
        for result in (CUDA, CUDA, MAC):
            progress.start(result, path)
        assert [task.description for task in progress.bars.tasks] == ["notebooks", "01_a@cuda", "01_a@mps"]
        progress.end(CUDA)
        assert [task.description for task in progress.bars.tasks] == ["notebooks", "01_a@mps"]


def on(device: str, **more: object) -> dict[str, object]:
    return {
        "machine": {"line": f"torch 2.15.0 · Python 3.12.1 · linux · {device} · 8 cores", "torch": "2.15.0"},
        **more,
    }


CUDA = Result(
    "01_a",
    variant="cuda",
    status="passed",
    cells=4,
    ran=3,
    skipped=[{"cell": 3, "reason": "needs mps; this machine has cuda 9.0 (NVIDIA H200)"}],
    verdicts=[{"row": "2.14-polar", "verdict": "holds", "note": ""}],
    awaits={"2.14-polar": "", "2.15-fp8": "mps"},
    **on("cuda 9.0 (NVIDIA H200)", where="box"),
)
MAC = Result(
    "01_a",
    variant="mps",
    status="failed",
    cells=4,
    ran=2,
    skipped=[{"cell": 2, "reason": "needs cuda; this machine has mps"}],
    unrun=[4],
    error={"cell": 4, "what": "E: no", "source": "x"},
    lost_on=["oldmac"],
    awaits={"2.14-polar": "", "2.15-fp8": "mps", "2.15-xpu": "xpu"},
    **on("mps", where="mac"),
)


def test_verdicts_come_together_by_row() -> None:
    entries = {entry["row"]: entry for entry in report(CUDA, MAC).to_json()["ledger"]}
    assert {row: entry["merged"] for row, entry in entries.items()} == {
        "2.14-polar": "holds on cuda",
        "2.15-fp8": "needs mps: nowhere",
        "2.15-xpu": "needs xpu: nowhere",
    }
    assert entries["2.14-polar"]["verdicts"] == [
        {"verdict": "holds", "device": "cuda 9.0 (NVIDIA H200)", "on": "box", "note": ""}
    ]
    both = [{"row": "2.14-polar", "verdict": v, "note": "", "gated": v == "holds"} for v in ("differs", "holds")]
    [entry, *_] = report(dataclasses.replace(CUDA, verdicts=both)).ledger
    assert entry["merged"] == "holds on cuda; differs on cpu", "a cell that asks for no hardware speaks of the CPU"
    page = report(CUDA, MAC).to_html()
    assert "Ledger of this run" in page and "needs xpu: nowhere" in page
    assert "Ledger of this run" not in report(PASSED).to_html()


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ("", "needs xpu: nowhere"),
        ("holds cpu (AVX2) | holds cpu (AVX512) | holds mps", "holds on cpu, mps"),
        ("differs mps | holds cuda 9.0 (A) | holds cpu", "holds on cpu, cuda; differs on mps"),
        ("holds 2 x cuda 9.0 (A) | differs cuda 7.5 (B)", "holds on 2 x cuda 9.0 (A); differs on cuda 7.5 (B)"),
        ("differs ", "differs on this machine"),
    ],
)
def test_merged_verdicts(verdicts: str, words: str) -> None:
    given = [v.partition(" ") for v in verdicts.split(" | ") if v]
    assert merge("xpu", [{"verdict": v, "device": device} for v, _, device in given]) == words
    assert merge("", []) == "no verdict"


def test_gated_cells_say_where_they_ran() -> None:
    assert report(CUDA, MAC).gated == [
        {"notebook": "01_a", "cell": 2, "ran": ["box"], "skipped": {"mac": "needs cuda; this machine has mps"}},
        {"notebook": "01_a", "cell": 3, "ran": ["mac"], "skipped": {"box": CUDA.skipped[0]["reason"]}},
    ]
    stopped = dataclasses.replace(MAC, unrun=[3, 4])
    assert report(CUDA, stopped).gated[1]["ran"] == [], "a run that failed before the cell did not run it"
    other = dataclasses.replace(MAC, name="02_b")
    assert report(CUDA, other).gated[0]["ran"] == [], "another notebook's cells are no matter"
    local = dataclasses.replace(CUDA, where="")
    assert list(report(local).gated[0]["skipped"]) == ["cuda 9.0 (NVIDIA H200)"]


def test_runs_of_one_notebook_are_told_apart(tmp_path: Path) -> None:
    both = report(
        CUDA,
        MAC,
        workers=[{"name": "box", "line": "torch", "state": "left"}, {"name": "mac", "line": "t", "state": ""}],
    )
    both.write(tmp_path)
    assert read_results(tmp_path / "report.json") == {"01_a@cuda": CUDA, "01_a@mps": MAC}
    assert both.machines == ["box: torch (left)", "mac: t"]
    page = (tmp_path / "report.html").read_text()
    for words in ('id="01_a@cuda"', "executed/01_a@mps.html", "01_a@mps on mac", "oldmac died while it ran this"):
        assert words in page
    names = [suite.get("name") for suite in ET.parse(tmp_path / "junit.xml").getroot()]
    assert names == ["01_a@cuda on box", "01_a@mps on mac"]
    assert "on box" in CUDA.line and "died" not in CUDA.line and "on mac, after oldmac died" in MAC.line


def test_a_notebook_that_was_not_run_says_why() -> None:
    what = "no worker is left that can run cuda"
    waits = Result("03_c", error={"cell": 0, "what": what}, needs=["cuda"])
    killed = Result("04_d", status=KILLED, lost_on=["a", "b"], error={"cell": 2, "what": "a and b died"})
    assert waits.line.startswith("not run     03_c") and waits.line.endswith(what)
    suites = ET.fromstring(report(waits, killed).to_junit())
    assert suites.find("testsuite[@name='03_c']/testcase/failure").get("message") == what
    assert ET.fromstring(report(Result("05_e")).to_junit()).find(".//skipped").get("message") == "not run"
    assert suites.find("testsuite[@name='04_d']/testcase/failure").get("type") == "killed its workers"
    page = report(waits, killed).to_html()
    assert what in page and "a and b died while they ran this" in page
    assert not report(waits).ok and report(waits, killed).counts == {"passed": 0, "failed": 0, "not run": 1, KILLED: 1}


def test_a_complaint_is_a_failure_wherever_one_looks() -> None:
    slow = report(PASSED, complaints=["01_a is over its budget: 61 s of 60 s"])
    assert not slow.ok and slow.closing == "1 passed, 0 failed; 1 complaint"
    [failure] = ET.fromstring(slow.to_junit()).findall(".//failure")
    assert failure.get("message") == slow.complaints[0]
    assert slow.complaints[0] in slow.to_html() and "Everything passed" not in slow.to_html()


def test_what_a_run_leaves_out_is_on_the_page_and_no_failure() -> None:
    left = report(
        CUDA, unmet=[{"notebook": "01_a", "spec": "xpu>=1", "cells": [3, 5], "why": {}}], notes=["old is out"]
    )
    page = left.to_html()
    assert "no worker meets <code>xpu&gt;=1</code>: 01_a, cells 3, 5" in page and "old is out" in page
    assert left.ok
