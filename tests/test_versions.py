"""Version truth: what a batch says of a release of torch, and the table that is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from utils import versions
from utils.catalog import all_notebooks
from utils.report import Result
from utils.versions import FAILS, LACKS, RUNS, Outcome, Under, load, merged, outcome, packages, page, save, under

LAPTOP = {"line": "torch 2.13.0+cpu · Python 3.11.7 · linux · cpu (AVX2) · 2 cores", "torch": "2.13.0+cpu"}


def result(status: str = "passed", *reasons: str, **more: Any) -> Result:
    skipped = [{"cell": n, "reason": reason} for n, reason in enumerate(reasons, 2)]
    return Result("06_x", status=status, seconds=11.6, peak_mb=700.4, skipped=skipped, machine=LAPTOP, **more)


WITHOUT = "needs symbol:torch.linalg.polar; this machine has torch 2.13.0+cpu without torch.linalg.polar"


@pytest.mark.parametrize(
    ("found", "state", "detail"),
    [
        (result(), RUNS, []),
        (result("passed", "needs cuda; this machine has cpu (AVX2)"), RUNS, []),
        (result("passed", WITHOUT, WITHOUT), LACKS, ["torch 2.13.0+cpu without torch.linalg.polar"]),
        (
            result("passed", "needs mps, torch>=2.14; this machine has cpu (AVX2), torch 2.13.0+cpu"),
            LACKS,
            ["torch 2.13.0+cpu, and a cell needs mps, torch>=2.14"],
        ),
        (
            result("failed", WITHOUT, error={"cell": 3, "what": "AttributeError: no polar"}),
            FAILS,
            ["cell 3: AttributeError: no polar"],
        ),
        (result("timed out"), FAILS, ["timed out"]),
    ],
)
def test_what_a_result_says_of_a_release(found: Result, state: str, detail: list[str]) -> None:
    assert outcome(found) == Outcome(state, detail, 12, 700)


def test_a_column_knows_its_torch_and_machine() -> None:
    column = under({"06_x": result()}, "2026-01-01")
    assert (column.torch, column.machine) == ("2.13.0+cpu", "Python 3.11.7 · linux · cpu (AVX2) · 2 cores")
    with pytest.raises(ValueError, match="no notebook came as far as its setup cell"):
        under({"06_x": Result("06_x")}, "2026-01-01")


def column(torch: str, *names: str, state: str = RUNS) -> Under:
    return Under(torch, "2026-01-01", "a machine", {name: Outcome(state, [], 1, 2) for name in names})


def test_new_columns_replace_old_ones_and_forget_nothing(tmp_path: Path) -> None:
    table = merged(
        [column("2.15.0", "01_a", "02_b"), column("2.13.0+cpu", "01_a")], [column("2.15.0+cpu", "02_b", state=FAILS)]
    )
    assert [u.torch for u in table] == ["2.13.0+cpu", "2.15.0+cpu"]
    assert {name: o.state for name, o in table[1].notebooks.items()} == {"01_a": RUNS, "02_b": FAILS}
    path = tmp_path / "versions.json"
    save(table, path)
    assert load(path) == table
    text = page(table)
    assert "torch 2.13.0+cpu" in text and "2.15.0/report.html" in text and "not run" in text and 'class="fails"' in text


def test_a_damaged_table_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    assert load(path) == []
    for damaged in (
        "[{",
        '[{"torch": "2.15.0"}]',
        '[{"torch": "2.15.0", "date": "", "machine": "", "notebooks": {"a": {}}}]',
    ):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=r"versions\.json is damaged .*run make versions"):
            load(path)


def test_a_batch_does_without_torch_and_jupyterlab() -> None:
    found = packages("# all\ntorch>=2.15  # x\njupyterlab>=4\nnbval==0.11.0  # compares\n\n-e .\n")
    assert found == ["nbval==0.11.0"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2.13"], "write three numbers"),
        (["new"], "Invalid version: 'new'"),
        (["2.13.0", "--notebooks", "zz"], "fits no"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    assert versions.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_torch_that_cannot_be_installed_leaves_its_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def fails(torch: str) -> Path:
        raise versions.subprocess.CalledProcessError(1, ["pip", "install", f"torch=={torch}"])

    monkeypatch.setattr(versions, "python_with", fails)
    monkeypatch.setattr(versions, "BUILD", tmp_path)
    before = versions.TABLE.read_bytes()
    assert versions.main(["1.0.0"]) == 1
    assert "torch 1.0.0: Command" in capsys.readouterr().err
    assert versions.TABLE.read_bytes() == before


def test_the_kept_table_is_whole() -> None:
    """Each release was run with each notebook that there is, and none fails under a release."""
    table = load()
    assert {"2.13.0", "2.14.1", "2.15.0"} <= {Version(u.torch).public for u in table}
    for u in table:
        assert set(u.notebooks) == {p.stem for p in all_notebooks()}, (
            f"run make versions ARGS={Version(u.torch).public}"
        )
        assert {name: o.detail for name, o in u.notebooks.items() if o.state == FAILS} == {}
    oldest = table[0].notebooks["06_linalg_polar"]
    assert oldest.state == LACKS and oldest.detail[0].endswith("without torch.linalg.polar")
