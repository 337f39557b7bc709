"""Binder, as far as one machine can prove it: the build that it would make, the pins, postBuild, start, the notebooks.

An environment with the pins is made in build/binder-venv and kept. The notebooks need root, for a memory limit.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import binder, sandbox
from launch.binder import Environment, broken_pins, copy_of_checkout, dockerfile, problems
from launch.conftest import lacking
from launch.page import user_environment
from launch.sandbox import Ran
from utils.paths import BUILD, ROOT

pytestmark = pytest.mark.launch

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def environment(note: Callable[[str], None]) -> Environment:
    """An environment made from binder/requirements.txt, and in the end a line with what it leaves unproved."""
    try:
        found = binder.environment()
    except LookupError as error:
        lacking(str(error))
    note(f"Binder's environment: {found.told}")
    return found


@pytest.fixture(scope="module")
def repo() -> Path:
    """The repository as Binder copies it into its image."""
    return copy_of_checkout(BUILD / "binder-home")


@pytest.fixture(scope="module")
def as_binder(environment: Environment, repo: Path) -> Run:
    """Run a command in the repository as Binder would, or as near to it as this machine can."""
    if sandbox.cannot() is None:
        see = [binder.base_of(environment.prefix)]

        def run(*command: str, **options: Any) -> Ran:
            return sandbox.run(command, repo=repo, **{"prefix": environment.prefix, "see": see} | options)

        return run

    def plain(*command: str, **options: Any) -> Ran:
        path = f"{environment.prefix / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        done = subprocess.run(
            command, cwd=repo, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=user_environment(PATH=path, HOME=str(repo)), timeout=options.get("timeout", 900),
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, 0.0, 0.0, 0.0, 0)

    return plain


def through_pip() -> dict[str, str]:
    """Where this machine's pip finds packages, for a user who has nothing of it."""
    names = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
    return {k: v for k, v in user_environment().items() if k.startswith("PIP_") or k in names}


def need_repo2docker() -> None:
    if importlib.util.find_spec("repo2docker") is None:
        lacking("repo2docker is missing (pip install -r tests/launch/requirements.txt)")


def test_the_build(repo: Path) -> None:
    """Python 3.12; the pins alone, before the repository is copied, so that a commit does not install torch again."""
    need_repo2docker()
    assert problems(dockerfile(repo)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"binder/runtime.txt": None}, "its Python is 3.10"),
        ({"binder/requirements.txt": "numpy\n-e .\n"}, "again for every commit"),
        ({"binder/requirements.txt": None}, "binder/requirements.txt is not installed"),
        ({"binder/environment.yml": "dependencies: [numpy]\n"}, "binder/requirements.txt is not installed"),
        ({"binder/apt.txt": None}, "no C++ compiler is installed"),
        ({"binder/postBuild": None}, "postBuild is not run"),
        ({"binder/start": None}, "start is not used"),
    ],
)
def test_a_wrong_build_is_told_apart(change: dict[str, str | None], words: str, tmp_path: Path) -> None:
    need_repo2docker()
    shutil.copytree(ROOT / "binder", tmp_path / "binder")
    (tmp_path / "requirements.txt").write_text("torch\n")
    for name, content in change.items():
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    assert any(words in problem for problem in problems(dockerfile(tmp_path)))


def test_the_pins_resolve(environment: Environment, record_property: Callable[[str, object], None]) -> None:
    """An empty environment takes all of them at once, with a torch for the CPU."""
    record_property("torch", environment.torch)
    record_property("unproved", environment.unproved)
    assert broken_pins(environment) == []
    done = binder.pip(environment.prefix / "bin" / "python", "check")
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def built(as_binder: Run, repo: Path, note: Callable[[str], None]) -> Ran:
    """postBuild, executed as Binder's build does; it may use the network there."""
    if sandbox.cannot() is None:
        subprocess.run(["chown", "-R", str(sandbox.UID), str(binder.VENV)], check=True)
    ran = as_binder("./binder/postBuild", network=True, timeout=1200, **through_pip())
    note(f"postBuild: {ran.seconds:.0f} s")
    return ran


def test_post_build(built: Ran, environment: Environment, repo: Path) -> None:
    """It ends well, leaves JupyterLab nothing to ask, and shows in the build's log how each notebook ran."""
    assert built.status == 0, built.output[-3000:]
    assert " passed, 0 failed" in built.output and "postBuild: not all" not in built.output, built.output[-3000:]
    for part in ("labconfig/default_setting_overrides.json",):
        assert (environment.prefix / "etc" / "jupyter" / part).read_text() == (ROOT / "binder" / part).read_text()
    assert list((repo / "build").glob("inductor-*/*")), "nothing was compiled ahead"
    assert not (repo / "build" / "prewarm").exists()


def test_post_build_shows_a_failure_and_goes_on(built: Ran, as_binder: Run, repo: Path, tmp_path: Path) -> None:
    """A broken notebook is told in the build's log, and the image is built."""
    kept = {p: p.read_bytes() for p in (repo / "notebooks").glob("*.ipynb")}
    try:
        for path in kept:
            path.unlink()
        (repo / "notebooks" / "90_broken.ipynb").write_text(
            json.dumps({"cells": [code("1 / 0")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        )
        ran = as_binder("./binder/postBuild", network=True, timeout=600, **through_pip())
    finally:
        (repo / "notebooks" / "90_broken.ipynb").unlink()
        for path, content in kept.items():
            path.write_bytes(content)
    assert ran.status == 0 and "ZeroDivisionError" in ran.output and "postBuild: not all" in ran.output


def code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "id": "a", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def test_start_to_a_usable_lab(built: Ran, as_binder: Run, repo: Path, note: Callable[[str], None]) -> None:
    """The page is there, a kernel adds, nothing is asked; how long a person waits for that is written down."""
    shutil.copy2(Path(__file__).with_name("usable.py"), repo / "usable.py")
    try:
        ran = as_binder("python", "usable.py", "binder/start", "jupyter", "lab", timeout=300)
    finally:
        (repo / "usable.py").unlink()
    assert ran.status == 0, ran.output[-3000:]
    told = json.loads(ran.output.strip().splitlines()[-1])
    assert told["answer"] == "2" and told["is_lab"]
    assert told["fetch_news"] == "false", "JupyterLab would ask about news"
    note(
        f"start: JupyterLab's page after {told['page']:.1f} s, a kernel that answers after {told['kernel']:.1f} s, "
        f"{ran.memory_mb:.0f} MB"
    )


def in_a_sandbox() -> None:
    if reason := sandbox.cannot():
        lacking(f"cannot run as Binder does: {reason}")


def test_the_sandbox_is_one(as_binder: Run) -> None:
    """One CPU, another user, an own home, no network."""
    in_a_sandbox()
    look = (
        "import os, socket; print(os.getuid(), len(os.sched_getaffinity(0)), os.environ['HOME'], os.getcwd())\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())\n"
        "print('loopback')\n"
        "socket.create_connection(('1.1.1.1', 80), 3)"
    )
    ran = as_binder("python", "-c", look)
    assert f"{sandbox.UID} 1 {sandbox.HOME} {sandbox.HOME}\nloopback\n" in ran.output
    assert ran.status == 1 and "Network is unreachable" in ran.output


def test_the_limit_is_one(as_binder: Run) -> None:
    """Too much memory is a kill, and it is counted."""
    in_a_sandbox()
    ran = as_binder("python", "-c", "print(len(bytearray(500_000_000)))", memory_mb=256)
    assert ran.status != 0 and ran.killed == 1
    ran = as_binder("python", "-c", "import time; kept = bytearray(100_000_000); time.sleep(0.5)", memory_mb=256)
    assert ran.status == 0 and ran.killed == 0 and 100 < ran.own_mb < 256


def run_all(as_binder: Run, repo: Path, name: str, **options: Any) -> tuple[Ran, dict[str, Any]]:
    """All notebooks, one after the other, through start; and their report."""
    batch = ["python", "-m", "utils.batch", "--all", "-j", "1", "--build", f"build/{name}"]
    ran = as_binder("bash", "binder/start", *batch, timeout=1500, **options)
    report = repo / "build" / name / "report.json"
    assert report.exists(), ran.output[-3000:]
    return ran, json.loads(report.read_text())


def tell(note: Callable[[str], None], what: str, ran: Ran, report: dict[str, Any]) -> None:
    note(
        f"{what}: {ran.seconds:.0f} s; at most {ran.memory_mb:.0f} MB held, "
        f"{ran.own_mb:.0f} MB its own; killed for memory: {ran.killed}"
    )
    for r in report["results"]:
        skipped = f", {len(r['skipped'])} of {r['cells']} cells skipped" if r["skipped"] else ""
        note(f"    {r['name']:<24} {r['seconds']:6.1f} s {r['peak_mb']:6.0f} MB{skipped}")


def compiled(repo: Path) -> set[tuple[str, int]]:
    """Libraries that torch.compile made for Binder, with their time. AOTInductor makes its packages anew each time."""
    made = (p for p in (repo / "build").glob("inductor-*/**/*.so") if not p.name.endswith(".wrapper.so"))
    return {(str(p), p.stat().st_mtime_ns) for p in made}


def test_all_notebooks_with_the_pins(built: Ran, as_binder: Run, repo: Path, note: Callable[[str], None]) -> None:
    """Another user, no network, one CPU, 2 GB: all notebooks run, nothing is killed, nothing compiled a second time."""
    in_a_sandbox()
    before = compiled(repo)
    ran, report = run_all(as_binder, repo, "pins")
    tell(note, "with the pins, after postBuild", ran, report)
    assert ran.killed == 0
    assert ran.status == 0, ran.output[-3000:]
    assert len(report["results"]) == len(list((ROOT / "notebooks").glob("[0-9]*.ipynb")))
    assert compiled(repo) == before, "what postBuild compiled is not found again"


def test_all_notebooks_with_this_environment(
    as_binder: Run, environment: Environment, repo: Path, note: Callable[[str], None]
) -> None:
    """The same with the torch of the tests, where the pins' own is out of reach: a CUDA build takes more, not less."""
    in_a_sandbox()
    if not environment.unproved:
        pytest.skip("Binder's own torch was there: nothing is left to bound")
    prefix = Path(sys.prefix)
    ran, report = run_all(as_binder, repo, "here", prefix=prefix, see=[binder.base_of(prefix)], PYTHONPATH=sandbox.HOME)
    tell(note, "with this environment, an upper bound", ran, report)
    assert ran.killed == 0
    assert ran.status == 0, ran.output[-3000:]
