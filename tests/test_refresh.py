"""Refresh: what is stored, what survives, what a second run changes (nothing)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from conftest import notebook, stdout, text
from nbformat.v4 import new_code_cell, new_output

from utils import refresh as refresh_module
from utils.catalog import code_cells, read, source_sha256
from utils.gate import SKIPPED_MIME
from utils.hardware import pretend, probe
from utils.refresh import normalise, refresh

HERE = replace(pretend(""), pretended=False)  # a bare CPU machine that counts as real
CUDA = replace(HERE, cuda="9.0", accelerators=1, accelerator_name="NVIDIA H200")
SETUP = "from utils import setup\nsetup()"


def outputs(path: Path) -> list[str]:
    return ["".join(o.get("text", "") or o.data["text/plain"] for o in c.outputs) for c in code_cells(read(path))]


def test_a_second_run_changes_nothing_and_recordings_survive(write: Callable[..., Path]) -> None:
    recorded = new_code_cell("#| requires: mps\nprint('on a Mac')", outputs=[stdout("on a Mac\n")])
    recorded.metadata["recorded"] = dict(device="mps", torch="2.15.0", platform="macOS 15.5", date="2026-10-01")
    recorded.metadata["recorded"]["source_sha256"] = source_sha256(recorded)
    path = write(
        "01_a.ipynb",
        text("# Try"),
        SETUP,
        "import sys\nprint('a')\nprint('b')\nsys.stdout.flush()\nprint('c')\n6 * 7",
        "for i in range(3):\n    print(f'\\r{i}', end='')",
        "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2]);\nplt.show()",
        recorded,
        "#| requires: cuda>=9.0, torch>=2.8\nprint('never here')",
        "#| requires: compile\nprint('compiled')",
        summary="x",
    )
    told = refresh(path, HERE)
    assert told == ["cell 5: kept its recording on mps", "cell 6: not recorded yet (cuda>=9.0, torch>=2.8)"]
    assert outputs(path)[1:] == [
        "a\nb\nc\n42",
        "2",
        "<Figure size 720x360 with 1 Axes>",
        "on a Mac\n",
        "Needs cuda>=9.0, torch>=2.8: not recorded yet.\n",
        "compiled\n",
    ]
    cells = code_cells(read(path))
    assert [c.execution_count for c in cells] == list(range(1, 8))
    assert [sorted(c.metadata) for c in cells] == [[], [], [], [], ["recorded"], [], []]
    first = path.read_bytes()
    assert refresh(path, HERE) == told
    assert path.read_bytes() == first


def test_timings_stay_until_their_cell_changes(write: Callable[..., Path]) -> None:
    source = "import time\nprint(time.perf_counter())"
    path = write("01_a.ipynb", new_code_cell(source, metadata={"tags": ["nbval-ignore-output", "timing"]}))
    refresh(path, HERE)
    first = path.read_bytes()
    refresh(path, HERE)
    assert path.read_bytes() == first
    nb = read(path)
    code_cells(nb)[0].source += "  # changed"
    nbformat.write(nb, path)
    before = outputs(path)
    refresh(path, HERE)
    assert outputs(path) != before


def test_a_failing_cell_leaves_the_file_as_it_was(write: Callable[..., Path], capsys: pytest.CaptureFixture) -> None:
    path = write("01_a.ipynb", "print('new')", "1 / 0")
    before = path.read_bytes()
    assert refresh_module.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert (
        "01_a.ipynb: not stored: CellExecutionError" in (err := capsys.readouterr().err) and "ZeroDivisionError" in err
    )


def test_a_misspelt_need_is_an_error(write: Callable[..., Path], capsys: pytest.CaptureFixture) -> None:
    path = write("01_a.ipynb", "#| requires: cdua\n1")
    assert refresh_module.main([str(path)]) == 1
    assert "did you mean 'cuda'" in capsys.readouterr().err


def test_what_runs_on_its_hardware_is_recorded(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("01_a.ipynb", "#| requires: cuda>=9.0\nprint('on the GPU')")  # no setup: the kernel has no gate
    assert refresh(path, CUDA) == []
    [cell] = code_cells(read(path))
    assert cell.outputs[0].text == "on the GPU\n"
    recorded = cell.metadata["recorded"]
    assert recorded["device"] == "cuda 9.0 (NVIDIA H200)" and recorded["source_sha256"] == source_sha256(cell)

    monkeypatch.setattr(refresh_module, "provenance", lambda *_: {"date": "another day"})
    first = path.read_bytes()
    refresh(path, CUDA)
    assert path.read_bytes() == first, "the same output again is no new recording"

    assert refresh(path, HERE) == ["cell 1: kept its recording on cuda 9.0 (NVIDIA H200)"]
    assert path.read_bytes() == first, "and a machine without the hardware keeps it"

    nb = read(path)
    code_cells(nb)[0].source += "  # changed"
    nbformat.write(nb, path)
    [told] = refresh(path, HERE)
    assert "STALE" in told


def test_a_notebook_that_needs_what_is_not_here_keeps_its_outputs(write: Callable[..., Path]) -> None:
    path = write(
        "01_a.ipynb", "from utils import setup\nsetup('symbol:torch.no_such')", ("print(1)", "from elsewhere\n")
    )
    refresh(path, probe())
    assert outputs(path)[1] == "from elsewhere\n"
    assert SKIPPED_MIME not in path.read_text()


def test_a_played_machine_records_nothing(write: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="unset WHATSNEW_MACHINE"):
        refresh(write("01_a.ipynb", "1"), pretend("cuda=9.0"))


def test_normal_form_drops_what_tools_leave() -> None:
    nb = notebook(text("# A"), "1", summary="x")
    nb.metadata["papermill"] = {"input_path": "/home/me/a.ipynb"}
    nb.cells[1].metadata |= {"papermill": {"duration": 1.0}, "execution": {}, "tags": []}
    nb.cells[1].outputs = [
        new_output("execute_result", data={"text/plain": "1"}, metadata={"x": 1}, execution_count=9),
        stdout("a\n"),
        stdout("b\n"),
    ]
    normalise(nb)
    assert sorted(nb.metadata) == ["kernelspec", "language_info", "tutorial"]
    assert nb.cells[1].metadata == {}
    assert [o.get("execution_count", o.get("text")) for o in nb.cells[1].outputs] == [1, "a\nb\n"]


def test_the_command_refuses_a_name_that_fits_nothing(capsys: pytest.CaptureFixture) -> None:
    assert refresh_module.main(["no_such_notebook"]) == 2
    assert "fits no notebook" in capsys.readouterr().err
