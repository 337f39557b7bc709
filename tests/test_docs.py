"""The pages in docs/ say what the tools do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from utils import batch
from utils.paths import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_and_modules_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for module in set(re.findall(r"python -m utils\.(\w+)", text)):
        assert (ROOT / "utils" / f"{module}.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_options_of_the_batch_are_there(page: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        batch.main(["--help"])
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    told = {
        o
        for line in re.findall(r"utils\.batch ([^`\n]*)", page.read_text("utf-8"))
        for o in re.findall(r"--[a-z-]+", line)
    }
    told |= set(re.findall(r"^- `(--[a-z-]+)", page.read_text("utf-8"), re.MULTILINE))
    assert told <= known, told - known


def test_the_recipe_has_ten_lines_and_keeps_the_status() -> None:
    recipe = re.search(r"```bash\n(.*?)```", (ROOT / "docs" / "ci.md").read_text("utf-8"), re.DOTALL)[1]
    assert len(recipe.strip().splitlines()) <= 10
    assert "--all --junit out.xml" in recipe and recipe.strip().endswith("exit $status")
    torch = [line for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines() if line.startswith("torch")]
    assert len(torch) == 1, "the recipe leaves out every line that begins with torch"
