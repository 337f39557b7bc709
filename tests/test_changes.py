"""What a batch says otherwise than the stored notebooks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from utils import changes
from utils.claims import DIFFERS, HOLDS, Answer, Row
from utils.report import Report, Result

ROW = Row("2.14-polar", "2.14", "It does.", "", "06_linalg_polar", ("cpu",), ("linalg",))
STORED = [Answer(ROW, DIFFERS, "by an SVD", "cpu")]
SAME = {"row": "2.14-polar", "verdict": DIFFERS, "note": "by an SVD"}
LAPTOP = {"line": "torch 2.16.0 · a laptop", "torch": "2.16.0"}


def found(*more: Answer, **change: object) -> list[str]:
    result = replace(Result("06_linalg_polar", status="passed", verdicts=[SAME], machine=LAPTOP), **change)
    return changes.changes({result.name: result}, [*STORED, *more])


def test_each_change_is_told() -> None:
    assert found() == []
    assert found(verdicts=[SAME | {"verdict": HOLDS, "note": ""}]) == ["- `2.14-polar` was *differs* and now **holds**"]
    assert found(verdicts=[SAME | {"note": "by QDWH"}]) == [
        "- `2.14-polar` still differs, but says: by QDWH (before: by an SVD)"
    ]
    assert found(status="failed", error={"cell": 3, "what": "KeyError: x"}) == [
        "- `06_linalg_polar` fails: cell 3: KeyError: x"
    ]
    gone = [{"cell": 4, "reason": "needs symbol:torch.x; this machine has torch 2.16.0 without torch.x"}]
    assert found(skipped=gone) == ["- `06_linalg_polar` says what is missing: torch 2.16.0 without torch.x"]
    assert found(verdicts=[]) == [], "a verdict that did not run is no change"


def test_a_verdict_is_held_against_that_of_its_own_platform() -> None:
    box = {"line": "torch 2.15.0 · Python 3.12 · linux · cuda 9.0 (NVIDIA H200) · 8 cores", "torch": "2.15.0"}
    there = SAME | {"gated": True, "verdict": HOLDS, "note": ""}
    assert found(machine=box, verdicts=[SAME | {"gated": False}, there]) == [], "nothing is stored of that GPU"
    assert found(machine=box, verdicts=[there | {"gated": False}]) != []
    recorded = Answer(ROW, DIFFERS, "slower", "cuda")
    assert found(recorded, machine=box, verdicts=[there]) == ["- `2.14-polar` was *differs* and now **holds**"]


def test_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(changes, "answers", lambda: STORED)
    report = tmp_path / "report.json"
    assert changes.main([str(report)]) == 2
    assert "run make run first" in capsys.readouterr().err
    for verdict, status in ((DIFFERS, 0), (HOLDS, 1)):
        result = Result("06_linalg_polar", status="passed", verdicts=[SAME | {"verdict": verdict}], machine=LAPTOP)
        Report(date="", jobs=1, results=[result]).write(tmp_path)
        assert changes.main([str(report)]) == status
        assert capsys.readouterr().out.startswith("torch 2.16.0 · a laptop\n\n")
