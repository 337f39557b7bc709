"""The pytest plugin: what it makes of notebooks that are right, wrong, hanging, deadly or on other hardware."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from conftest import notebook, stdout
from nbformat.v4 import new_code_cell

from utils.catalog import source_sha256
from utils.paths import ROOT

SETUP = ("from utils import setup\nsetup()  # NBVAL_IGNORE_OUTPUT", "")
PLUGIN = ["pytest", "-c", "pyproject.toml", "-o", "addopts=", "-p", "utils.testing", "-p", "no:cacheprovider"]
NBVAL = ["--nbval", "--nbval-current-env", "-q", "-rs"]

Verdicts = dict[tuple[str, str], tuple[str, str]]


def run(python: Callable, folder: Path, cell_timeout: int = 60, **environment: str) -> Verdicts:
    """(file, cell) -> (passed / failed / skipped / xfailed, message) for all notebooks of a folder.

    The timeout is for a cell; importing torch on a busy machine is far from it.
    """
    xml = folder / "junit.xml"
    options = [f"--nbval-cell-timeout={cell_timeout}", f"--junitxml={xml}", f"--rootdir={folder}"]
    done = python(*PLUGIN, *NBVAL, *options, folder, **environment)
    assert xml.exists(), done.stdout + done.stderr
    found: Verdicts = {}
    for case in ET.parse(xml).iter("testcase"):
        outcome, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "xfailed" if "xfail" in child.get("type", "") else child.tag.replace("failure", "failed")
                message = child.get("message", "") + (child.text or "")
        found[case.get("classname", "").removesuffix(".ipynb"), case.get("name", "")] = (outcome, message)
    return found


def recorded(source: str, output: str, sha: str | None = None) -> nbformat.NotebookNode:
    cell = new_code_cell(source, outputs=[stdout(output)])
    fields = dict(device="cuda 9.0", torch="2.15.0", platform="linux", date="2026-12-01")
    cell.metadata["recorded"] = fields | {"source_sha256": sha or source_sha256(cell)}
    return cell


NOTEBOOKS = {
    "right": [
        ("print('a')", "a\n"),
        ("x = 6 * 7\nx;", ""),
        ("import subprocess\n_ = subprocess.run(['echo', 'b'])", "b\n"),
    ],
    "wrong_digit": [("print(3.14)", "3.15\n")],
    "wrong_missing": [("1", ""), ("pass", "a\n")],
    "raises": [("1 / 0", "")],
    "dies": [("x = 1", ""), ("import os\nos.kill(os.getpid(), 9)", ""), ("print('never')", "never\n")],
    "calls_out": [("import socket\nsocket.create_connection(('192.0.2.1', 80))", "")],
    "calls_out_from_a_child": [
        (
            "import subprocess, sys\ncode = \"import socket; socket.create_connection(('192.0.2.1', 80), 1)\"\n"
            "done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
            "print('NetworkBlocked' in done.stderr)",
            "True\n",
        )
    ],
    "gated": [
        SETUP,
        ("#| requires: cuda>=9.0\nprint('never')", "Needs cuda>=9.0: not recorded yet.\n"),
        ("#| requires: torch>=99\nprint('never')", "x\n"),
        ("print('always')", "always\n"),
    ],
}
#: In a run of their own, with a short timeout: no cell of theirs has to come to an end.
HANGING = {
    "hangs": [("import threading\nthreading.Event().wait()", ""), ("print('later')", "later\n")],
    "hangs_for_good": [
        ("import signal, time\n_ = signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)", ""),
        ("print('later')", "later\n"),
    ],
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """One run over all of them, and one over those that hang: kernels are slow to start."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}

    def python(*args: object, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, env=env | more, capture_output=True, text=True, timeout=300)

    found: Verdicts = {}
    for name, books, timeout in (("others", NOTEBOOKS, 60), ("hanging", HANGING, 6)):
        folder = tmp_path_factory.mktemp(name)
        for book, cells in books.items():
            nbformat.write(notebook(*cells), folder / f"{book}.ipynb")
        began = time.monotonic()
        found |= run(python, folder, timeout)
        found[name, "seconds"] = ("", str(time.monotonic() - began))
    return found


def test_a_right_notebook_passes(verdicts: Verdicts) -> None:
    assert [verdicts["right", f"Cell {n}"][0] for n in (1, 2, 3)] == ["passed"] * 3


@pytest.mark.parametrize(
    ("name", "cell", "words"),
    [
        ("wrong_digit", "Cell 1", "Cell outputs differ"),
        ("wrong_missing", "Cell 2", "Missing output fields"),
        ("raises", "Cell 1", "ZeroDivisionError"),
        ("dies", "Cell 2", "the kernel died while it ran this cell"),
        ("hangs", "Cell 1", "Timeout of 6 seconds exceeded"),
        ("hangs_for_good", "Cell 1", "Timeout of 6 seconds exceeded"),
        ("calls_out", "Cell 1", "no network in notebooks"),
    ],
)
def test_a_wrong_notebook_fails_in_the_cell_that_is_wrong(verdicts: Verdicts, name: str, cell: str, words: str) -> None:
    outcome, message = verdicts[name, cell]
    assert outcome == "failed" and words in message


@pytest.mark.parametrize(("name", "cell"), [("dies", "Cell 3"), ("hangs", "Cell 2"), ("hangs_for_good", "Cell 2")])
def test_cells_behind_a_lost_kernel_are_not_run(verdicts: Verdicts, name: str, cell: str) -> None:
    outcome, message = verdicts[name, cell]
    assert outcome == "xfailed" and "not run: Cell" in message and "ended the kernel" in message


def test_nothing_waits_longer_than_the_timeout(verdicts: Verdicts) -> None:
    # two cells of 6 s (and 5 s of nbval's), two kernels, and much room for a busy machine
    assert float(verdicts["hanging", "seconds"][1]) < 120


def test_child_processes_have_no_network_either(verdicts: Verdicts) -> None:
    assert verdicts["calls_out_from_a_child", "Cell 1"] == ("passed", "")


def test_gated_cells_are_skipped_with_the_reason(verdicts: Verdicts) -> None:
    outcome, message = verdicts["gated", "Cell 2"]
    assert outcome == "skipped" and "needs cuda>=9.0; this machine has " in message
    outcome, message = verdicts["gated", "Cell 3"]
    assert outcome == "skipped" and "needs torch>=99; this machine has torch 2." in message
    assert verdicts["gated", "Cell 4"][0] == "passed"


def test_on_its_hardware_a_recording_is_compared(python: Callable, tmp_path: Path) -> None:
    """Played: the cells print what a GPU would, so that they run here."""
    gated = "#| requires: cuda>=9.0\nprint('0.5')"
    nb = notebook(
        SETUP, (gated, "Needs cuda>=9.0: not recorded yet.\n"), recorded(gated, "0.5\n"), recorded(gated, "0.6\n")
    )
    nbformat.write(nb, tmp_path / "gpu.ipynb")
    found = run(python, tmp_path, WHATSNEW_MACHINE="cuda=9.0; accelerators=1")
    assert found["gpu", "Cell 2"][0] == "passed", "without a recording it is run, and not compared"
    assert found["gpu", "Cell 3"][0] == "passed"
    assert found["gpu", "Cell 4"][0] == "failed" and "Cell outputs differ" in found["gpu", "Cell 4"][1]


@pytest.mark.parametrize(
    ("machine", "spec", "reason"),
    [
        ("torch=2.13.0", "torch>=2.15", "this machine has torch 2.13.0"),
        ("mps=1; macos=14.5; accelerators=1", "mps, macos>=15", "this machine has linux"),
        ("xpu=1; accelerators=1", "cuda", "this machine has xpu"),
        ("compiler=", "compile", "no C++ compiler"),
    ],
)
def test_played_machines_skip_with_what_they_have(
    python: Callable, tmp_path: Path, machine: str, spec: str, reason: str
) -> None:
    nbformat.write(notebook((f"#| requires: {spec}\n1 / 0", "x\n")), tmp_path / "a.ipynb")
    outcome, message = run(python, tmp_path, WHATSNEW_MACHINE=machine)["a", "Cell 1"]
    assert outcome == "skipped" and reason in message


def test_a_misspelt_need_stops_the_run(python: Callable, tmp_path: Path) -> None:
    nbformat.write(notebook(("#| requires: cdua\n1", "")), tmp_path / "a.ipynb")
    done = python(*PLUGIN, *NBVAL, f"--rootdir={tmp_path}", tmp_path)
    assert done.returncode != 0 and "did you mean 'cuda'" in done.stdout + done.stderr
