"""Batches over real dask workers: processes on this machine that play a CUDA box, a Mac and a CPU box."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import psutil
import pytest
from conftest import notebook

from utils import batch, fleet, gate, paths
from utils.fleet import Box
from utils.hardware import pretend
from utils.paths import ROOT
from utils.report import Result

BOXES = {
    "cudabox": "cuda=9.0; cuda_runtime=13.2; accelerators=1; compiler=g++; memory_gb=64",
    "mac": "mps=1; macos=15.5; system=macOS 15.5; accelerators=1; compiler=; memory_gb=16",
    "cpubox": "compiler=; memory_gb=4",
}
GATE = "from utils import gate\nfrom utils.claims import verdict\nfrom utils.hardware import probe\ngate.install()"
#: Says who its parents are: the worker is among them.
TELLS = "import os, psutil, pathlib\nparents = psutil.Process().parents()"
KILLS = f"{TELLS}\nworker = next(p for p in parents if 'utils.fleet' in p.cmdline())\nworker.kill()"
WAITS = "import threading\nthreading.Event().wait()"


def environment(**more: str) -> dict[str, str]:
    hidden = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {"CI": "1"} | more


def until(holds: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """Wait for something; its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Local:
    """A scheduler and workers on this machine, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.address = folder, f"tcp://127.0.0.1:{port}"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        command = ["dask", "scheduler", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dashboard-address", "127.0.0.1:0"]  # what --host says does not go for it
        self.scheduler = self.start("scheduler", *command)

    def start(self, name: str, *args: str, **more: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", *args]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**more), stdout=log, stderr=log, start_new_session=True
            )
        return process

    def have(self, *names: str) -> None:
        """Exactly these workers, all alive and ready."""
        for name in [n for n in self.workers if n not in names or self.workers[n].poll() is not None]:
            end(self.workers.pop(name))
        started = [n for n in names if n not in self.workers]
        for name in started:
            more = {"WHATSNEW_MACHINE": BOXES[name]}
            self.workers[name] = self.start(name, "utils.fleet", self.address, "--name", name, **more)
        for name in started:
            log = self.folder / f"{name}.log"
            until(lambda log=log: "takes cells that need" in log.read_text(), f"{name} is ready")

    def batch(self, build: Path, *args: object, address: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "utils.batch", *map(str, args), "--build", str(build)]
        command += ["--scheduler", address or self.address, "--limit", "60", "--wait-for-workers", "3"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True, **pipes)

    def alive(self) -> list[str]:
        return [name for name, process in self.workers.items() if process.poll() is None]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with all that it started, and so that it cannot see it coming."""
    if sys.platform == "win32":  # it has no process groups
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Local]:
    """A scheduler of its own, ended on leaving with all its workers."""
    cluster = Local(folder)
    try:
        yield cluster
    finally:
        for process in [*cluster.workers.values(), cluster.scheduler]:
            end(process)


unix_signals = pytest.mark.skipif(sys.platform == "win32", reason="ends another process by Ctrl-C or SIGTERM")


def results(build: Path) -> dict[str, Any]:
    """The report: its results by key, and the whole under ""."""
    report = json.loads((build / "report.json").read_text())
    return {Result(**r).key: r for r in report["results"]} | {"": report}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with started(tmp_path_factory.mktemp("fleet")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ran(local: Local, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, Any], Path]:
    """One batch over three kinds of machine: (stdout, stderr, report, build folder)."""
    folder = tmp_path_factory.mktemp("books")
    differs = "verdict('2.14-polar', holds=not probe().mps, note='not on an Apple GPU')"
    draws = "from IPython.display import Image\nImage(data=b'\\x89PNG\\r\\n\\x1a\\n', format='png')"
    books = {
        "01_both": [GATE, f"#| requires: cuda\n{differs}", f"#| requires: mps, macos>=15\n{differs}", "print(1)"],
        "02_any": [GATE, "SIZE = 1", "verdict('2.14-polar', holds=True)", draws],
        "03_xpu": [GATE, "#| requires: xpu\nverdict('2.14-sqrth', holds=True)", "print(1)"],
        "04_big": [GATE, "#| requires: memory_gb>=32\nprint(1)", "import os\nprint(os.getcwd())"],
        "05_wrong": [GATE, "1 / 0"],
    }
    for name, cells in books.items():
        nbformat.write(notebook(*cells, summary="x"), folder / f"{name}.ipynb")
    local.have(*BOXES)
    process = local.batch(folder / "build", *sorted(folder.glob("*.ipynb")))
    out, err = process.communicate(timeout=180)
    assert process.returncode == 1, out + err
    return out, err, results(folder / "build"), folder / "build"


def test_each_notebook_goes_where_its_cells_can_run(ran: Any) -> None:
    where = {key: r["where"] for key, r in ran[2].items() if key}
    assert where.pop("02_any") == "cpubox", "what any worker can run leaves the able ones free"
    assert where.pop("03_xpu") in BOXES and where.pop("05_wrong") in BOXES, "these can run anywhere"
    assert where == {"01_both@cuda": "cudabox", "01_both@macos+mps": "mac", "04_big": "cudabox"}
    assert {r["status"] for key, r in ran[2].items() if key not in ("", "05_wrong")} == {"passed"}
    assert {r["lost_on"] == [] for key, r in ran[2].items() if key} == {True}


def test_a_failure_is_told_as_in_a_local_run(ran: Any) -> None:
    wrong = ran[2]["05_wrong"]
    assert (wrong["status"], wrong["error"]["cell"]) == ("failed", 2)
    assert "ZeroDivisionError" in wrong["error"]["what"] and wrong["error"]["source"] == "1 / 0"
    assert ran[0].rstrip().endswith("5 passed, 1 failed")


def test_verdicts_are_merged_over_devices(ran: Any) -> None:
    entries = {entry["row"]: entry for entry in ran[2][""]["ledger"]}
    assert entries["2.14-polar"]["merged"] == "holds on cpu, cuda; differs on mps"
    assert {v["on"]: v["note"] for v in entries["2.14-polar"]["verdicts"]} == {
        "cudabox": "not on an Apple GPU",
        "mac": "not on an Apple GPU",
        "cpubox": "",
    }
    assert entries["2.14-sqrth"]["merged"] == "needs xpu: nowhere"
    page = (ran[3] / "report.html").read_text()
    assert "Ledger of this run" in page and "needs xpu: nowhere" in page and "differs on mps" in page


def test_each_cell_is_shown_where_it_ran(ran: Any) -> None:
    cells = {(c["notebook"], c["cell"]): c for c in ran[2][""]["cells"]}
    assert cells["01_both", 2]["ran"] == ["cudabox"] and list(cells["01_both", 2]["skipped"]) == ["mac"]
    assert cells["01_both", 3]["ran"] == ["mac"] and list(cells["01_both", 3]["skipped"]) == ["cudabox"]
    assert cells["03_xpu", 2]["ran"] == [] and ("04_big", 2) not in cells
    page = (ran[3] / "report.html").read_text()
    assert "01_both, cell 2" in page and "cudabox: needs mps, macos&gt;=15; this machine has" in page
    for name in BOXES:
        assert f"{name}: torch " in page, "the machines' lines"


def test_a_need_that_no_worker_meets_is_reported(ran: Any) -> None:
    [unmet] = ran[2][""]["unmet"]
    assert (unmet["notebook"], unmet["spec"], unmet["cells"]) == ("03_xpu", "xpu", [2])
    assert set(unmet["why"]) == set(BOXES) and "this machine has cuda 9.0" in unmet["why"]["cudabox"]
    assert "no worker meets xpu: 03_xpu leaves out cells 2" in ran[1]
    assert "no worker meets <code>xpu</code>" in (ran[3] / "report.html").read_text()


def test_executed_copies_and_pictures_come_back(ran: Any) -> None:
    for key in ran[2]:
        if key:
            assert (ran[3] / "executed" / f"{key}.html").exists() and f"executed/{key}.html" in (
                ran[3] / "report.html"
            ).read_text()
    [picture] = ran[2]["02_any"]["pictures"]
    assert (ran[3] / "executed" / picture).read_bytes().startswith(b"\x89PNG")
    assert 30 < ran[2]["02_any"]["peak_mb"] < 3000 and ran[2]["02_any"]["seconds"] > 0
    printed = nbformat.read(ran[3] / "executed" / "04_big.ipynb", 4).cells[2].outputs[0].text.strip()
    assert printed != str(ROOT) and not Path(printed).exists(), "a folder of its own, gone with the notebook"


def test_junit_has_a_suite_a_notebook_and_machine(ran: Any) -> None:
    suites = {s.get("name") for s in ET.parse(ran[3] / "junit.xml").getroot()}
    assert {"01_both@cuda on cudabox", "01_both@macos+mps on mac"} <= suites and len(suites) == 6


@unix_signals
def test_ctrl_c_leaves_the_workers_and_resume_goes_on(local: Local, write: Callable[..., Path], tmp_path: Path) -> None:
    local.have(*BOXES)
    mark, build = tmp_path / "pid", tmp_path / "build"
    first = write("01_cuda.ipynb", GATE, "#| requires: cuda\nprint(1)", summary="x")
    tells = f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
    slow = write("02_slow.ipynb", GATE, tells, WAITS, summary="x")
    process = local.batch(build, first, slow)
    until(
        lambda: mark.exists() and (build / "report.json").exists() and "passed" in (build / "report.json").read_text(),
        "passed",
    )
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "--resume goes on" in out and "Traceback" not in err, out + err
    assert {k: r["status"] for k, r in results(build).items() if k} == {"01_cuda": "passed", "02_slow": "not run"}
    until(lambda: not psutil.pid_exists(int(mark.read_text())), "the kernel is ended on the worker", 20)
    assert sorted(local.alive()) == sorted(BOXES)

    nbformat.write(notebook(GATE, "print(2)", summary="x"), slow)
    process = local.batch(build, first, slow, "--resume")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "kept from the last run" in out, out + err
    found = results(build)
    assert {k: r["kept"] for k, r in found.items() if k} == {"01_cuda": True, "02_slow": False}
    assert found["02_slow"]["where"] == "cpubox", "the least able one that will do"


def test_the_notebook_of_a_killed_worker_runs_elsewhere(
    local: Local, write: Callable[..., Path], tmp_path: Path
) -> None:
    """Nothing is lost: a worker is killed by its pid in the middle of a notebook."""
    local.have(*BOXES)
    mark, build = tmp_path / "parents", tmp_path / "build"
    once = (
        f"{TELLS}\nmark = pathlib.Path({str(mark)!r})\nagain = mark.exists()\n"
        "mark.write_text(' '.join(str(p.pid) for p in [psutil.Process(), *parents]))\n"
        f"if not again:\n    import threading\n    threading.Event().wait()"
    )
    paths = [write("01_slow.ipynb", GATE, once, summary="x")]
    paths += [write(f"0{i}_quick.ipynb", GATE, "print(1)", summary="x") for i in (2, 3, 4)]
    process = local.batch(build, *paths)
    pids = until(lambda: mark.exists() and mark.read_text().split(), "the slow notebook runs")
    [(name, worker)] = [(n, w) for n, w in local.workers.items() if str(w.pid) in pids]
    worker.kill()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0 and out.rstrip().endswith("4 passed, 0 failed"), out + err
    slow = results(build)["01_slow"]
    assert slow["lost_on"] == [name] and slow["where"] in set(BOXES) - {name}
    assert f"after {name} died" in out and f"{name} died while it ran" in (build / "report.html").read_text()
    until(lambda: not psutil.pid_exists(int(pids[0])), "the kernel that the worker left behind is ended", 20)
    states = {w["name"]: w["state"] for w in results(build)[""]["workers"]}
    assert states == {n: "left" if n == name else "" for n in BOXES}


def test_a_notebook_that_kills_two_workers_is_marked(local: Local, write: Callable[..., Path], tmp_path: Path) -> None:
    local.have(*BOXES)
    paths = [write("01_deadly.ipynb", GATE, KILLS, WAITS, summary="x")]
    paths += [write(f"0{i}_quick.ipynb", GATE, "print(1)", summary="x") for i in range(2, 6)]
    process = local.batch(tmp_path / "build", *paths)
    out, err = process.communicate(timeout=120)
    found = results(tmp_path / "build")
    assert {k: r["status"] for k, r in found.items() if k} == {
        "01_deadly": "killed its workers",
        **{f"0{i}_quick": "passed" for i in range(2, 6)},
    }, out + err
    assert process.returncode == 1 and len(local.alive()) == 1, "the third worker was not tried"
    deadly = found["01_deadly"]
    assert len(set(deadly["lost_on"])) == 2 and not set(deadly["lost_on"]) & set(local.alive())
    assert "died while they ran it; it is not tried a third time" in deadly["error"]["what"]
    suites = {s.get("name"): s for s in ET.parse(tmp_path / "build" / "junit.xml").getroot()}
    [failed] = [s for name, s in suites.items() if name.startswith("01_deadly")]
    assert failed.find("testcase/failure").get("type") == "killed its workers"


def test_a_worker_with_another_checkout_is_left_out(
    local: Local, write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    local.have("cpubox")
    monkeypatch.setattr(fleet, "checkout", lambda: "another")
    path = str(write("01_a.ipynb", "1", summary="x"))
    build = str(tmp_path / "build")
    assert batch.main([path, "--scheduler", local.address, "--build", build, "--wait-for-workers", "2"]) == 2
    assert "cpubox is left out: utils/ or announced.toml differs from this checkout" in capsys.readouterr().err


def test_a_device_that_no_worker_has(local: Local, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    local.have("cpubox")
    assert batch.main(["06", "--scheduler", local.address, "--device", "xpu", "--build", str(tmp_path)]) == 2
    assert "no worker meets --device xpu (cpubox: needs xpu; this machine has cpu" in capfd.readouterr().err


def test_a_name_that_is_taken(local: Local, python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    local.have("cpubox")
    done = python("utils.fleet", local.address, "--name", "cpubox", timeout=60, WHATSNEW_MACHINE="")
    assert done.returncode == 2 and "there is one named cpubox already; choose another --name" in done.stderr


@unix_signals
def test_a_worker_that_is_told_to_stop_is_no_death(
    local: Local, write: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """And the last worker that could run a notebook is not waited for for ever."""
    local.have("cpubox")
    mark = tmp_path / "mark"
    path = write("01_slow.ipynb", GATE, f"import pathlib\npathlib.Path({str(mark)!r}).touch()", WAITS, summary="x")
    process = local.batch(tmp_path / "build", path)
    until(mark.exists, "the notebook runs")
    local.workers["cpubox"].terminate()
    out, err = process.communicate(timeout=30)
    [slow] = [r for k, r in results(tmp_path / "build").items() if k]
    assert process.returncode == 1 and (slow["status"], slow["lost_on"]) == ("not run", []), out + err
    assert slow["error"]["what"] == "no worker is left that can run anything" and slow["error"]["what"] in out
    assert local.workers["cpubox"].wait(timeout=20) == 0

    arguments = [str(path), "--scheduler", local.address, "--build", str(tmp_path / "build"), "--wait-for-workers", "1"]
    assert batch.main(arguments) == 2, "and now there is none at all"
    assert "no worker came within 1 s; on each machine run: python -m utils.fleet tcp://" in capfd.readouterr().err


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "http://127.0.0.1:1", "tcp://127.0.0.1", "nonsense"])
def test_a_wrong_address(address: str, tmp_path: Path, python: Callable[..., Any], capfd: Any) -> None:
    """One line, and no traceback of what dask throws away: that comes when the process ends."""
    arguments = ["06", "--scheduler", address, "--build", str(tmp_path), "--wait-for-workers", "1"]
    if address == "nonsense":
        done = python("utils.batch", *arguments)
        status, err = done.returncode, done.stderr
    else:
        status, err = batch.main(arguments), capfd.readouterr().err
    assert err.startswith(f"batch: no dask scheduler answers at {address} (") and len(err.splitlines()) == 1, err
    assert status == 2


def test_a_worker_without_a_scheduler(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = python("utils.fleet", "tcp://127.0.0.1:1", "--wait", "1", timeout=60, WHATSNEW_MACHINE="")
    assert done.returncode == 2 and done.stderr.startswith("fleet: no worker at tcp://127.0.0.1:1: "), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("main", [batch.main, lambda args: fleet.main(["tcp://127.0.0.1:1", "--wait", "1"])])
def test_dask_is_missing(main: Callable, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setenv("WHATSNEW_MACHINE", "")
    assert main(["06", "--scheduler", "tcp://127.0.0.1:1", "--build", str(tmp_path)]) == 2
    assert "needs dask: pip install distributed\n" in capsys.readouterr().err


def test_the_scheduler_dies(write: Callable[..., Path], tmp_path: Path) -> None:
    """One that no other test uses: what ended is kept, and nothing is left running."""
    (tmp_path / "fleet").mkdir()
    with started(tmp_path / "fleet") as own:
        own.have("cpubox")
        mark, build = tmp_path / "pid", tmp_path / "build"
        tells = f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
        first = write("01_quick.ipynb", GATE, summary="x")
        process = own.batch(build, first, write("02_slow.ipynb", GATE, tells, WAITS, summary="x"))
        until(lambda: mark.exists() and mark.read_text(), "the slow notebook runs")
        end(own.scheduler)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "the scheduler is gone" in err and "Traceback" not in err, out + err
        assert {k: r["status"] for k, r in results(build).items() if k} == {"01_quick": "passed", "02_slow": "not run"}
        assert own.workers["cpubox"].wait(timeout=60) == 1, "a service manager may start it again"
        assert (own.folder / "cpubox.log").read_text().endswith("fleet: the scheduler is gone\n")
        until(lambda: not psutil.pid_exists(int(mark.read_text())), "the kernel is ended", 20)


def test_cold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert batch.main(["06", "--scheduler", "tcp://127.0.0.1:1", "--cold", "--build", str(tmp_path)]) == 2
    assert "--cold empties the torch.compile cache of this machine" in capsys.readouterr().err


def box(name: str, machine: str, specs: list[str]) -> Box:
    there = pretend(machine)
    reasons = {spec: gate.unmet(spec, there) for spec in specs}
    return Box("tcp://", name, frozenset(fleet.words(there)), reasons=reasons)


def test_a_worker_carries_the_words_that_hold_there() -> None:
    assert fleet.words(pretend(BOXES["mac"])) == ["mps", "macos", "accelerator"]
    assert set(fleet.words(pretend(BOXES["cudabox"]))) == {"cuda", "cuda_runtime", "accelerator", "compile"}
    assert fleet.words(pretend(BOXES["cpubox"])) == []


@pytest.mark.parametrize(
    ("cells", "runs", "nowhere"),
    [
        ({}, [[]], []),
        ({2: ["xpu"]}, [[]], [2]),
        ({2: ["cuda"], 3: ["mps"], 4: ["cuda>=8.0"]}, [["cuda", "cuda>=8.0"], ["mps"]], []),
        ({2: ["cuda>=12.0"], 3: ["memory_gb>=8"]}, [["memory_gb>=8"]], [2]),
        ({2: ["mps"], 3: ["mps", "memory_gb>=32"]}, [["mps"]], [3]),
        ({2: ["cuda"], 3: ["accelerator"], 4: ["mps"]}, [["cuda", "accelerator"], ["mps"]], []),
        ({2: ["accelerator"], 3: ["mps"]}, [["accelerator", "mps"]], []),
    ],
)
def test_few_runs_cover_all_cells(cells: dict[int, list[str]], runs: list[list[str]], nowhere: list[int]) -> None:
    specs = [spec for needs in cells.values() for spec in needs]
    found, left = fleet.cover(cells, [box(name, machine, specs) for name, machine in BOXES.items()])
    assert (found, list(left)) == (runs, nowhere)


def test_runs_of_one_notebook_share_nothing(write: Callable[..., Path]) -> None:
    gated = [f"#| requires: {spec}\n1" for spec in ("cuda", "mps", "cuda>=9.0", "rocm")]
    path = write("01_a.ipynb", "setup('python>=3.11')", *gated)
    specs = ["python>=3.11", "cuda", "mps", "cuda>=9.0", "rocm"]
    boxes = [box(name, machine, specs) for name, machine in BOXES.items()]
    (one, two), [unmet] = fleet.spread([path], [Result("01_a")], boxes)
    assert (one.key, one.needs) == ("01_a@cuda", ["python>=3.11", "cuda", "cuda>=9.0"])
    assert (two.key, two.needs) == ("01_a@mps", ["python>=3.11", "mps"])
    one.lost_on.append("cudabox")
    assert two.lost_on == []
    assert (unmet["spec"], unmet["cells"]) == ("rocm", [5]), "what the whole notebook needs is met"
    [alone], _ = fleet.spread([path], [Result("01_a")], boxes[:1])
    assert alone.key == "01_a", "one run needs no name of its own"
    broken = Result("02_b", status="failed")
    assert fleet.spread([path], [broken], boxes) == ([broken], [])


def test_a_comparison_is_decided_by_what_the_worker_said() -> None:
    """The word alone is not enough, nor an answer that the worker did not give."""
    there = box("cudabox", BOXES["cudabox"], ["cuda>=9.0", "cuda>=10.0"])
    assert there.meets(["cuda>=9.0"]) and not there.meets(["cuda>=10.0"]) and not there.meets(["cuda>=8.0"])
    assert not box("none", BOXES["cpubox"], ["cuda"]).meets(["cuda"])
    plain = Box("tcp://", "plain", frozenset(), reasons={"cuda>=9.0": None})
    assert not plain.meets(["cuda>=9.0"]), "dask would let the task wait for a worker with the word"


def test_the_checkout_is_told_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "utils").mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "LEDGER", tmp_path / "announced.toml")
    hashes = []
    for code, rows in [(b"x = 1\n", b""), (b"x = 1\r\n", b""), (b"x = 2\n", b""), (b"x = 1\n", b"[[row]]")]:
        (tmp_path / "utils" / "a.py").write_bytes(code)
        (tmp_path / "announced.toml").write_bytes(rows)
        hashes.append(paths.checkout())
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3


class Silent:
    """A client of two workers, one of which does not answer what it is before it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.scheduler = SimpleNamespace(address="tcp://scheduler:8786")

    def subscribe_topic(self, *_: Any) -> None:
        pass

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {f"tcp://{name}": {"name": name, "resources": {"notebook": 1}} for name in ("a", "b")}}

    def run(self, function: Any, specs: list[str], workers: list[str], on_error: str) -> dict[str, Any]:
        if workers == ["tcp://b"]:
            self.let.wait(30)
        said = {"line": "torch", "torch": "2.15.0", "reasons": {}, "checkout": paths.checkout()}
        return {address: dict(said) for address in workers}


def test_a_worker_that_hangs_keeps_nobody_waiting() -> None:
    client = Silent()
    crew = fleet.Fleet(client, [], wait=0.5, limit=60)
    began = time.monotonic()
    crew.gather()
    assert time.monotonic() - began < 10
    assert [box.name for box in crew.boxes.values()] == ["a"]
    assert crew.notes == ["b has not said yet what it is"]
    client.let.set()
    until(lambda: crew.meet() or len(crew.boxes) == 2, "b joins when it answers")
