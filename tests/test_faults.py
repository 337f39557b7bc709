"""The table of faults, docs/faults.md: each row has a test, and these are the ones that no other module has."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import text

from utils.hardware import cpp_compiler
from utils.paths import ROOT, keep_compiled

SETUP = "from utils import setup\nsetup()"
TABLE = (ROOT / "docs" / "faults.md").read_text("utf-8")


def test_every_row_names_a_test_that_is_there() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ") and "---" not in line][1:]
    named = [re.search(r"`(test_\w+\.py)::(test_\w+)` \|$", row) for row in rows]
    assert len(rows) >= 15 and all(named), [row for row, name in zip(rows, named, strict=True) if not name]
    for module, function in {(found[1], found[2]) for found in named if found}:
        tree = ast.parse((ROOT / "tests" / module).read_text("utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (module, function)


def batch(*arguments: Any, before: Callable[[], None] | None = None, **environment: str) -> tuple[int, str, dict]:
    """Run `python -m utils.batch` as a person would: (exit status, what it printed, results by name)."""
    env = os.environ | {"CI": "1"} | environment
    command = [sys.executable, "-m", "utils.batch", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, preexec_fn=before, check=False
    )
    build = Path(arguments[arguments.index("--build") + 1])
    report = build / "report.json"
    results = {r["name"]: r for r in json.loads(report.read_text())["results"]} if report.exists() else {}
    return done.returncode, done.stdout + done.stderr, results


def test_out_of_memory(write: Callable[..., Path], tmp_path: Path) -> None:
    """An allocation that fails is an error of its cell; a kernel that the system kills (SIGKILL) is a dead kernel."""
    refused = write("01_refused.ipynb", "x = 1", "bytearray(1 << 50)", summary="x")
    killed = write("02_killed.ipynb", "x = 1", "import os\nos.kill(os.getpid(), 9)", summary="x")
    status, out, results = batch(refused, killed, "--build", tmp_path / "build")
    assert status == 1
    assert results["01_refused"]["error"]["cell"] == results["02_killed"]["error"]["cell"] == 2
    assert "cell 2: MemoryError" in out and "out of memory?" in out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files, which Windows has not")
def test_the_disk_is_full(write: Callable[..., Path], tmp_path: Path) -> None:
    """Played by a limit on the size of files: as on a full disk, a write breaks off with an OSError."""
    import resource  # Unix has it

    small = write("01_small.ipynb", text("# Small"), "x = 1", summary="x")
    large = write("02_large.ipynb", text("# Large"), "print('x' * 400_000)", summary="x")
    build = tmp_path / "build"
    assert batch(small, "--build", build)[0] == 0
    before = (build / "report.json").read_text()

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    status, out, results = batch(large, "--build", build, before=limit)
    assert status == 1 and results["02_large"]["status"] == "failed"
    assert "cell" in out and "File too large" in out and "Traceback" not in out

    def tight() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))

    (build / "report.json").write_text(before)
    status, out, results = batch(small, "--build", build, before=tight)
    assert status == 2 and "batch: cannot write" in out and "--build" in out and "Traceback" not in out
    assert (build / "report.json").read_text() == before, "what was there is whole"


def test_a_misspelt_need(write: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]) -> None:
    book = write("01_typo.ipynb", text("# Typo"), SETUP, "#| requires: cdua\nprint(1)", summary="x")
    status, out, results = batch(book, "--build", tmp_path / "build")
    assert status == 1 and results["01_typo"]["error"]["cell"] in (0, 2)
    assert "unknown requirement 'cdua': did you mean 'cuda'?" in out
    assert "did you mean 'cuda'?" in python("utils.lint", book).stdout


def one_skip(results: dict, name: str, cell: int) -> str:
    [skipped] = results[name]["skipped"]
    assert results[name]["status"] == "passed" and skipped["cell"] == cell
    return skipped["reason"]


COMPILES = "#| requires: compile\nimport torch\nprint(torch.compile(lambda x: x + 1)(torch.ones(2)).tolist())"


def test_no_compiler(write: Callable[..., Path], tmp_path: Path) -> None:
    book = write("01_compiles.ipynb", text("# Compile"), SETUP, COMPILES, "print('the rest')", summary="x")
    status, _, results = batch(book, "--build", tmp_path / "build", CXX="/no/such/compiler")
    assert status == 0
    assert one_skip(results, "01_compiles", 2).startswith(
        "needs compile; this machine has no C++ compiler (install g++"
    )


def test_an_old_torch(write: Callable[..., Path], tmp_path: Path) -> None:
    """An older torch is one that lacks a name; `make versions` runs real ones."""
    gated = "#| requires: symbol:torch.linalg.polar\nprint(1)"
    book = write("01_new.ipynb", text("# New"), SETUP, gated, "print('the rest')", summary="x")
    machine = "torch=2.13.0; without=torch.linalg.polar"
    status, _, results = batch(book, "--build", tmp_path / "build", WHATSNEW_MACHINE=machine)
    assert status == 0
    assert one_skip(results, "01_new", 2).endswith("this machine has torch 2.13.0 without torch.linalg.polar")


def test_no_torch(write: Callable[..., Path], tmp_path: Path) -> None:
    book = write("01_any.ipynb", text("# Any"), SETUP, summary="x")
    status, out, _ = batch(book, "--build", tmp_path / "build", WHATSNEW_MACHINE="torch=")
    assert status == 1 and "cell 1: ModuleNotFoundError: these notebooks need torch: run `pip install" in out


def test_a_font_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from utils import figures

    with mpl.rc_context():
        assert figures.use_style() is None and plt.rcParams["font.family"] == ["DejaVu Sans"]
        monkeypatch.setitem(figures.STYLE, "font.family", "No Such Font")
        monkeypatch.setattr(figures.font_is_missing, "__defaults__", ("No Such Font",))
        assert figures.use_style() == "No Such Font is missing, so figures use another font: install fonts-dejavu-core"
        fig, ax = plt.subplots()
        ax.set_title("drawn all the same")
        fig.canvas.draw()
        plt.close(fig)
    assert "findfont" not in caplog.text


@pytest.mark.skipif(cpp_compiler() is None, reason="needs a C++ compiler")
def test_a_path_beyond_ascii(write: Callable[..., Path], tmp_path: Path) -> None:
    home = tmp_path / "Küche-é-家" / ("lang" * 10)  # too long for the path of a socket, too
    home.mkdir(parents=True)
    quick = "import torch._inductor.config\ntorch._inductor.config.cpp_cache_precompile_headers = False"
    book = write("01_compiles.ipynb", text("# Compile"), f"{SETUP}\n{quick}", COMPILES, summary="x")
    book = book.rename(home / book.name)
    compiled = home / "inductor"
    environment = {"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(compiled), "TMPDIR": str(home)}
    status, out, results = batch(book, "--build", home / "build", **environment)
    assert status == 0, out
    assert results["01_compiles"]["skipped"] == [] and any(compiled.rglob("*.cpp"))
    assert "[2.0, 2.0]" in (home / "build" / "executed" / book.name).read_text("utf-8")


def test_a_checkout_with_a_space_compiles_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plain", "with space"):
        # a copy: what keep_compiled sets in it is gone with the test, also a variable that was not there before
        monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"})
        keep_compiled(tmp_path / name)
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        assert kept == (str(tmp_path / name) if name == "plain" else None)


def test_a_port_is_taken(tmp_path: Path) -> None:
    """JupyterLab moves on to another port by itself, and says which."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = os.environ | {
            "JUPYTER_CONFIG_DIR": str(tmp_path),
            "JUPYTER_DATA_DIR": str(tmp_path),
            "HOME": str(tmp_path),
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += [f"--port={port}", "--IdentityProvider.token=t", str(ROOT / "notebooks" / "00_start_here.ipynb")]
        log = tmp_path / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            until, address = time.monotonic() + 90, None
            while address is None and time.monotonic() < until and server.poll() is None:
                time.sleep(0.3)
                address = re.search(r"http://127\.0\.0\.1:(\d+)/lab", log.read_text("utf-8"))
            assert address, log.read_text("utf-8")
            assert int(address[1]) != port and f"The port {port} is already in use" in log.read_text("utf-8")
            while time.monotonic() < until:  # the address is printed a moment before it answers
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/api?token=t", timeout=30) as answer:
                        assert answer.status == 200
                    break
                except urllib.error.URLError:
                    time.sleep(0.3)
            else:
                pytest.fail("the address does not answer")
        finally:
            server.kill()
            server.wait()
