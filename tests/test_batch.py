"""The batch runner, on notebooks that are right, wrong, hanging, deadly, early to leave, and on bad input."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from conftest import notebook, text
from nbformat.v4 import new_code_cell

from utils import batch
from utils.batch import BadInput, _value, complaints, keep_finished, plan, verdict_needs
from utils.jobs import Job, Running, clear_executed
from utils.paths import ROOT
from utils.report import Report, Result

SETUP = "from utils import setup\nsetup()"
PARAMETERS = new_code_cell(
    "SIZE = 3  # rows\nNAME = 'x'  # label\nRATE = 0.5  # speed", metadata={"tags": ["parameters"]}
)
DRAWS = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nplt.show()"

BOOKS: dict[str, list[Any]] = {
    "01_right": [
        text("# Do it right"),
        SETUP,
        PARAMETERS,
        "print(SIZE)",
        DRAWS,
        "#| requires: cuda\n1 / 0",
        "print(1)",
    ],
    "02_raises": [text("# Raise"), PARAMETERS, "print('before')", "{}['missing']", "print('after')"],
    "03_dies": [text("# Die"), "x = 1", "import os\nos.kill(os.getpid(), 9)", "print('after')"],
    "04_leaves": [text("# Leave"), "x = 1", "import sys\nsys.exit(0)", "print('after')"],
}
MARK = "BATCH_TEST"  # in the environment of a batch and of all that it starts, so that what is left over can be told
HANG_LIMIT = 25  # seconds for a notebook that hangs in its second cell: it must get there on a busy machine too


def marked(token: str) -> set[int]:
    """The processes that carry this token in their environment."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def left_over(token: str, seconds: float = 10) -> set[int]:
    """Those that are still there when all had time to go: helpers of multiprocessing end a moment after the batch."""
    until = time.monotonic() + seconds
    while (found := marked(token)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]:
    """One batch over all of them, and a file that is no notebook: (process, report by name, build folder)."""
    folder = tmp_path_factory.mktemp("books")
    for name, cells in BOOKS.items():
        nbformat.write(
            notebook(*cells, summary="x", budget_mb=1 if name == "01_right" else 1500), folder / f"{name}.ipynb"
        )
    (folder / "06_corrupt.ipynb").write_text('{"cells": [')
    build = folder / "build"
    names = [*BOOKS, "06_corrupt"]
    command = [sys.executable, "-m", "utils.batch", *[str(folder / f"{n}.ipynb") for n in names]]
    command += ["--build", str(build), "--limit", "120", "-p", "SIZE", "4", "--junit", str(folder / "second.xml")]
    env = os.environ | {"CI": "1", MARK: str(folder)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, env=env)
    assert (build / "report.json").exists(), done.stdout + done.stderr
    report = json.loads((build / "report.json").read_text())
    return done, {r["name"]: r for r in report["results"]} | {"": report}, build


def test_statuses(ran: Any) -> None:
    status = {name: r["status"] for name, r in ran[1].items() if name}
    assert status == {
        "01_right": "passed",
        "02_raises": "failed",
        "03_dies": "kernel died",
        "04_leaves": "failed",
        "06_corrupt": "failed",
    }
    assert ran[0].returncode == 1
    assert ran[0].stdout.rstrip().endswith("1 passed, 4 failed")


@pytest.mark.parametrize(
    ("name", "cell", "words"),
    [
        ("02_raises", 3, "KeyError: 'missing'"),
        ("03_dies", 2, "the kernel died"),
        ("04_leaves", 3, "stopped before cell 3 without an error (sys.exit?)"),
        ("06_corrupt", 0, "not a notebook"),
    ],
)
def test_the_error_names_the_cell(ran: Any, name: str, cell: int, words: str) -> None:
    error = ran[1][name]["error"]
    assert error["cell"] == cell and words in error["what"]
    assert (f"cell {cell}: {error['what']}" if cell else error["what"]) in ran[0].stdout
    assert "cell 0" not in ran[0].stdout, "that is no cell"


def test_a_hang_is_ended_at_the_limit(write: Callable[..., Path], tmp_path: Path) -> None:
    """In a batch of its own: the others may take longer than the limit where a machine is busy."""
    write("01_hangs.ipynb", text("# Hang"), "x = 1", "import threading\nthreading.Event().wait()", summary="x")
    out, err, status = finish(start(tmp_path, "--limit", str(HANG_LIMIT)))
    [hangs] = json.loads((tmp_path / "build" / "report.json").read_text())["results"]
    assert status == 1 and hangs["status"] == "timed out", out + err
    assert hangs["error"]["cell"] == 2 and f"still running after {HANG_LIMIT} s" in hangs["error"]["what"]
    assert "cell 2: " in out and "still running after" in out and out.rstrip().endswith("0 passed, 1 failed")
    assert HANG_LIMIT <= hangs["seconds"] < HANG_LIMIT + 30
    assert (hangs["cells"], hangs["ran"], hangs["unrun"]) == (2, 1, [2]), "what it ran before is kept"
    assert (tmp_path / "build" / "executed" / "01_hangs.html").exists()
    assert not left_over(str(tmp_path))


def test_temporary_files_go_with_the_process(write: Callable[..., Path], tmp_path: Path) -> None:
    """Also those of a kernel that is killed, which removes nothing itself: the file with its key among them."""
    path = write("01_waits.ipynb", "import threading\nthreading.Event().wait()", summary="x")
    running = Running(Job(path, tmp_path / "out.ipynb"), limit=600)
    try:
        until = time.monotonic() + 60
        while not list(Path(running.scratch).glob("*.json")) and time.monotonic() < until:
            assert not running.look()
            time.sleep(0.1)
        assert list(Path(running.scratch).glob("*.json")), "the kernel's connection file is there"
    finally:
        running.end()
    assert not Path(running.scratch).exists()


def test_only_the_own_copies_are_cleared(tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    executed.mkdir()
    own = {"01_a.ipynb", "01_a.html", "01_a.log", "01_a_1.png", "01_a_12.png"}
    others = {"01_ab.html", "01_a_b.ipynb", "01_a_b_1.png", "01_a@cuda.html", "my[1].html"}
    for name in own | others:
        (executed / name).touch()
    clear_executed(tmp_path, "01_a")
    assert {path.name for path in executed.iterdir()} == others
    clear_executed(tmp_path, "my[1]")
    assert {path.name for path in executed.iterdir()} == others - {"my[1].html"}


def test_cells_are_counted_and_skips_have_reasons(ran: Any) -> None:
    right, dies = ran[1]["01_right"], ran[1]["03_dies"]
    assert (right["cells"], right["ran"]) == (6, 5)
    [skipped] = right["skipped"]
    assert skipped["cell"] == 5 and skipped["reason"].startswith("needs cuda; this machine has ")
    assert dies["cells"] == 3


def test_a_local_run_has_the_same_ledger(ran: Any) -> None:
    assert ran[1][""]["ledger"] == []
    [cell] = ran[1][""]["cells"]
    assert (cell["notebook"], cell["cell"], cell["ran"]) == ("01_right", 5, [])
    [(device, reason)] = cell["skipped"].items()
    assert device and device in reason
    assert reason.startswith("needs cuda; ")
    assert ran[1]["02_raises"]["unrun"] == [4] and ran[1]["03_dies"]["unrun"] == [2, 3]


def test_parameters_go_where_they_are_known(ran: Any) -> None:
    assert ran[1]["01_right"]["parameters"] == ran[1]["02_raises"]["parameters"] == {"SIZE": 4}
    assert ran[1]["03_dies"]["parameters"] == {}
    executed = nbformat.read(ran[2] / "executed" / "01_right.ipynb", 4)
    assert any(o.get("text") == "4\n" for c in executed.cells for o in c.get("outputs", []))
    assert str(ran[2].parent) not in (ran[2] / "executed" / "01_right.ipynb").read_text(), "a path of this machine"


def test_time_and_memory_are_measured(ran: Any) -> None:
    right = ran[1]["01_right"]
    assert 60 < right["peak_mb"] < 3000
    assert 0 < right["cell_seconds"] < right["seconds"] < 120
    assert "OVER BUDGET" in ran[0].stdout


def test_the_report_can_be_opened(ran: Any) -> None:
    _, report, build = ran
    page = (build / "report.html").read_text()
    for name in report:
        assert name in page
    assert "executed/01_right.html" in page and (build / "executed" / "01_right.html").exists()
    [picture] = report["01_right"]["pictures"]
    assert f"executed/{picture}" in page
    assert (build / "executed" / picture).read_bytes().startswith(b"\x89PNG")
    assert "needs cuda; this machine has" in page and "KeyError: &#39;missing&#39;" in page


def test_junit_says_the_same(ran: Any) -> None:
    text = (ran[2] / "junit.xml").read_text()
    assert text == (ran[2].parent / "second.xml").read_text()
    suites = {s.get("name"): s for s in ET.fromstring(text)}
    assert {n: s.get("failures") for n, s in suites.items()} == {n: "0" if n == "01_right" else "1" for n in suites}
    assert suites["01_right"].get("skipped") == "1"
    assert suites["03_dies"].find("testcase/failure").get("type") == "kernel died"


def test_no_process_is_left(ran: Any) -> None:
    assert not left_over(str(ran[2].parent))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such_notebook"], "fits no notebook"),
        (["06", "-p", "NO_SUCH", "1"], "no chosen notebook has a parameter NO_SUCH; there are: "),
        (["06", "--all"], "say one of them"),
        (["06", "--jobs", "0"], "must be above zero"),
        (["06", "--device", "cuda>=99"], "needs cuda>=99; this machine has"),
        (["06", "--device", "cdua"], "did you mean 'cuda'"),
        (["06", "--build", __file__], "choose another folder with --build"),
    ],
)
def test_bad_input_runs_nothing(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    if "--build" not in arguments:
        arguments = [*arguments, "--build", str(tmp_path)]
    assert batch.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_two_batches_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with batch.build_folder(tmp_path):
        assert batch.main(["06", "--build", str(tmp_path)]) == 2
    assert "another batch is running" in capsys.readouterr().err


def test_a_folder_without_notebooks_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "select", lambda names: [])
    with pytest.raises(BadInput, match="no notebook to run"):
        plan([], {}, {})
    assert not Report(date="", jobs=1, results=[]).ok


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [("4", 3, 4), ("4", 0.5, 4.0), ("1e-3", 0.5, 0.001), ("4", "x", "4"), ("True", False, True), ("[1]", [2], [1])],
)
def test_parameter_values(text: str, default: object, value: object) -> None:
    assert _value("P", text, default) == value and type(_value("P", text, default)) is type(value)


@pytest.mark.parametrize(("text", "default"), [("many", 3), ("0.5", 3), ("1", True), ("x", 0.5)])
def test_a_value_of_another_kind_is_refused(text: str, default: object) -> None:
    with pytest.raises(BadInput, match="parameter P is a "):
        _value("P", text, default)


def test_the_longest_comes_first(write: Callable[..., Path]) -> None:
    paths = [str(write(f"0{i}_a.ipynb", "1", summary="x")) for i in range(3)]
    earlier = {"00_a": Result("00_a", seconds=5), "02_a": Result("02_a", seconds=50)}
    assert [p.stem for p in plan(paths, {}, earlier)[0]] == ["01_a", "02_a", "00_a"]  # a new one may be long


def test_complaints_turn_a_batch_red() -> None:
    """A budget that was not kept, and a device on which nothing was tried."""
    skipped = {"cell": 4, "reason": "needs cuda, module:nvmath; this machine has no nvmath"}
    asks = {"3": ["symbol:torch.linalg.polar", "cuda"], "4": ["cuda, module:nvmath"], "5": ["mps"]}
    passed = Result("06_a", status="passed", peak_mb=9, budget_mb=5, cells=5, ran=4, asks=asks, skipped=[skipped])
    report = Report(date="", jobs=1, results=[passed])
    assert (
        complaints(report, None, False) == complaints(report, "cuda", False) == complaints(report, "mps", False) == []
    )
    assert "over its budget: 9 MB of 5 MB" in complaints(report, None, True)[0]
    assert "has a cell that asks for xpu" in complaints(report, "xpu", False)[0]
    passed.asks = {"4": asks["4"]}
    assert "has no nvmath" in complaints(report, "cuda", False)[0], "the one that asks for it was skipped"
    passed.skipped, passed.unrun = [], [4, 5]
    assert "no cell that asks for cuda ran" in complaints(report, "cuda", False)[0], "it was not reached"


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A batch over the notebooks of a folder, in a process group of its own; all that it starts is marked."""
    names = [str(p) for p in sorted(folder.glob("*.ipynb"))]
    command = [sys.executable, "-m", "utils.batch", *names, "--build", str(folder / "build"), "--jobs", "1", *more]
    env = os.environ | {"CI": "1", MARK: str(folder)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str], seconds: float = 150) -> tuple[str, str, int]:
    """Wait for it: (stdout, stderr, exit status). It is not left running when a test fails of it."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return out, err, process.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C for a process group of its own: Unix's signals")
def test_ctrl_c_loses_nothing_and_resume_goes_on(write: Callable[..., Path], tmp_path: Path) -> None:
    write("01_quick.ipynb", SETUP, summary="x")
    slow = write("02_slow.ipynb", SETUP, "import threading\nthreading.Event().wait()", summary="x")
    process = start(tmp_path)
    report = tmp_path / "build" / "report.json"
    until = time.monotonic() + 90
    while not (report.exists() and '"passed"' in report.read_text()) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group gets it
    out, err, status = finish(process, 60)
    assert status == 130, out + err
    assert "--resume goes on" in out and "Traceback" not in err
    found = {r["name"]: r["status"] for r in json.loads(report.read_text())["results"]}
    assert found == {"01_quick": "passed", "02_slow": "not run"}
    assert not left_over(str(tmp_path))

    nbformat.write(notebook(SETUP, summary="x"), slow)
    out, err, status = finish(start(tmp_path, "--resume"))
    assert status == 0, out + err
    results = {r["name"]: r for r in json.loads(report.read_text())["results"]}
    assert results["01_quick"]["kept"] and not results["02_slow"]["kept"]
    assert "kept from the last run" in out and out.rstrip().endswith("2 passed, 0 failed")


def test_a_killed_batch_leaves_nothing_running(write: Callable[..., Path], tmp_path: Path) -> None:
    """Not even by SIGKILL, which it cannot see coming."""
    mark = tmp_path / "pid"
    tells = f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
    write("01_slow.ipynb", tells, "import threading\nthreading.Event().wait()", summary="x")
    process = start(tmp_path)
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    running = marked(str(tmp_path))
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        pipe.close()
    assert {process.pid, int(mark.read_text())} < running, "the batch, its kernel, and the process that runs papermill"
    assert not left_over(str(tmp_path), 20), "its kernel goes on, or what started it"


def test_what_passed_is_kept_if_nothing_changed() -> None:
    old = Result("01_a", status="passed", sha256="1", needs=["cuda"], machine={"torch": "2.15.0+cu130"})
    cases = {
        "same": Result("01_a", sha256="1", needs=["cuda"], variant="cuda"),
        "another file": Result("01_a", sha256="2", needs=["cuda"]),
        "other tools": Result("01_a", sha256="1", needs=["cuda"], checkout="2"),
        "for other cells": Result("01_a", sha256="1", needs=["mps"]),
        "other parameters": Result("01_a", sha256="1", needs=["cuda"], parameters={"SIZE": 1}),
    }
    kept = {}
    for case, result in cases.items():
        this = Report(date="", jobs=1, results=[result])
        keep_finished(this, {"01_a": replace(old)}, lambda result: {"2.15.0"})
        kept[case] = this.results[0].kept
    assert kept == {case: case == "same" for case in cases}
    this = Report(date="", jobs=1, results=[cases["same"]])
    keep_finished(this, {"01_a": replace(old)}, lambda result: {"2.16.0"})
    assert not this.results[0].kept, "another torch"


def test_a_verdict_waits_for_what_its_cell_asks_for() -> None:
    nb = notebook(
        "setup('torch>=2.15')", "#| requires: cuda\nverdict(\n    'a', holds=x)", 'verdict("b", holds=x)', "1"
    )
    assert verdict_needs(nb) == {"a": "cuda", "b": "torch>=2.15"}
    assert verdict_needs(notebook("verdict('c', holds=x)")) == {"c": ""}
    assert verdict_needs(notebook("#| requires: cdua\nverdict('c', holds=x)")) == {}, "that fails in its cell"


def test_list_runs_nothing(capsys: pytest.CaptureFixture) -> None:
    assert batch.main(["--list", "06"]) == 0
    out = capsys.readouterr().out
    assert "06_linalg_polar: " in out and "-p STEPS " in out and "mps, macos>=15: " in out


def test_workers_import_nothing_of_jupyterlab() -> None:
    """And not the grammar that makes `import nbformat` slow where JupyterLab is installed."""
    code = "import sys, utils.worker; print(sorted({m.split('.')[0] for m, v in sys.modules.items() if v}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    found = set(ast.literal_eval(done.stdout))
    assert {"papermill", "nbformat", "nbconvert"} <= found, done.stderr
    assert not found & {"jupyterlab", "jupyter_server", "notebook", "rfc3987_syntax", "torch", "matplotlib"}
