"""JupyterLab as `make lab` starts it, in Chromium: each notebook is opened, run, looked at in both themes.

The pictures go to build/screenshots. A browser is needed: `apt-get install chromium`, or `playwright install chromium`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import notebook, text
from nbformat.v4 import new_code_cell, new_output

from launch.conftest import lacking
from launch.contrast import contrast, figure_complaint
from launch.page import (
    CELLS,
    RUN_LIMIT,
    Facts,
    Server,
    browser_page,
    complaints,
    find_chromium,
    is_idle,
    lab,
    lab_command,
    look,
    menu,
    opened,
    prompts,
    wait_until,
)
from utils.catalog import all_notebooks
from utils.paths import BUILD, NOTEBOOKS

pytestmark = pytest.mark.launch

SHOTS = BUILD / "screenshots"
SETUP = "from utils import setup\nsetup()"


def tree(folder: Path) -> Path:
    """What JupyterLab serves in these tests: a copy, so that its autosave changes nothing in the checkout."""
    shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page in a browser that knows nothing yet: no settings, no history."""
    if importlib.util.find_spec("playwright") is None:
        lacking("playwright is missing (pip install -r tests/launch/requirements.txt)")
    if find_chromium() is None and not own_chromium():
        lacking("no browser (apt-get install chromium, or playwright install chromium)")
    with browser_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def own_chromium() -> bool:
    """Has playwright downloaded a Chromium of its own?"""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


def contents(folder: Path) -> dict[str, str]:
    """A hash of each file below a folder, also of those that git is told to overlook."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, page: Any) -> Iterator[Server]:
    """One JupyterLab for all tests of this module."""
    with lab(tree(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("jupyter")) as server:
        for name, cells in BROKEN.items():
            nbformat.write(notebook(*cells), server.folder / f"{name}.ipynb")
        nobody = notebook(text("# Ask"), SETUP)
        del nobody.metadata["language_info"]
        nobody.metadata.kernelspec = {"name": "not-installed", "display_name": "Not installed", "language": "fortran"}
        nbformat.write(nobody, server.folder / "93_asks.ipynb")
        yield server


def stored_png(source: str) -> Any:
    return new_code_cell(source, outputs=[new_output("display_data", {"image/png": "", "text/plain": "<Figure>"})])


#: Notebooks that a reader must not get, and what is to be said of them.
BROKEN: dict[str, list[Any]] = {
    "90_right": [text("# Right\n\n## Then"), SETUP, "#| requires: cuda>=99\n1 / 0", ("print(1)", "1\n")],
    "91_wrong": [
        text("# Wrong\n\n![none](images/none.png)\n\n<span style='color: #888'>pale</span>"),
        SETUP,
        stored_png("x = 1"),
        "import sys\nprint('careful', file=sys.stderr)",
        "{}['missing']",
        ("print(1)", "1\n"),
    ],
    "92_dark": [
        text("# Dark"),
        SETUP,
        stored_png(
            "import matplotlib.pyplot as plt\nplt.rcdefaults()\nplt.figure(facecolor='none')\n"
            "_ = plt.plot([0, 1])\nplt.gca().set_facecolor('none')\n"
            "_ = plt.title('black on nothing')\nplt.show()"
        ),
    ],
    "94_waits": [text("# Wait"), SETUP, "input('your name?')"],
}


def keep_pictures(name: str, facts: Facts) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    for theme, shown in facts.themes.items():
        (SHOTS / f"{name}_{theme}.png").write_bytes(shown.shot)


def test_the_command_is_the_users(server: Server, page: Any) -> None:
    """What runs here is the line that `make lab` runs, with options behind it; it opens the page it names, unasked."""
    plain = lab_command("").split()
    assert plain[-2:] == ["lab", "notebooks/00_start_here.ipynb"]
    assert server.command.split()[: len(plain)] == plain
    page.questions.clear()
    page.goto(server.opens)
    page.wait_for_selector('.jp-NotebookPanel h1:has-text("Start here")')
    page.wait_for_timeout(4000)  # the question about news comes when all else is there
    assert not page.questions, "JupyterLab asks something at its first start"


def test_the_ledger_can_be_searched(server: Server, page: Any) -> None:
    """What is typed stays in the box, JupyterLab's one-letter shortcuts leave the cells alone, and rows follow."""
    with opened(page, server, "00_start_here.ipynb"):
        box = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) input[type="search"]')
        assert box.count() == 0, "the box is still the stored one"
        menu(page, "Run", "Run All Cells")
        assert wait_until(page, lambda: any(p != "[ ]:" for p in prompts(page)), 30, "the first cell starts")
        assert wait_until(page, lambda: not any("*" in p for p in prompts(page)), RUN_LIMIT, "Run All ends")
        assert wait_until(page, lambda: is_idle(page), 30, "the kernel is idle")
        box.wait_for(state="attached", timeout=10_000)
        cells = page.locator(CELLS).count()
        rows = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output tbody tr:has-text('2.1')")
        everything = rows.count()
        box.scroll_into_view_if_needed()
        box.click()
        page.keyboard.type("add mm")  # a and d d and m are shortcuts: a new cell, delete, Markdown
        page.wait_for_timeout(500)
        assert box.input_value() == "add mm" and page.locator(CELLS).count() == cells
        box.fill("mps differs")
        shown = [row.inner_text() for row in rows.all() if row.is_visible()]
        assert everything > 60 and 0 < len(shown) < 5
        assert all("mps" in row and "differs" in row for row in shown), shown


@pytest.mark.parametrize("name", [p.stem for p in all_notebooks()])
def test_notebook(name: str, server: Server, page: Any, note: Callable[[str], None]) -> None:
    """Run All in JupyterLab: every cell ran or says why not, the figures are there, both themes can be read."""
    facts = look(page, server, f"{name}.ipynb")
    keep_pictures(name, facts)
    wide = f", lines cut in cells {', '.join(f'{n} (by {p} px)' for n, p in facts.wide)}" if facts.wide else ""
    note(f"{name}: open after {facts.load_seconds:.1f} s, Run All {facts.run_seconds:.1f} s{wide}")
    assert not complaints(facts, NOTEBOOKS / f"{name}.ipynb")


def test_the_checkout_is_untouched(server: Server, page: Any) -> None:
    """Saving happens in the copy."""
    copy = server.folder / "00_start_here.ipynb"
    stored = copy.read_bytes()
    with opened(page, server, copy.name):
        before = contents(NOTEBOOKS)  # now, because somebody may be at work in it
        menu(page, "File", "Save Notebook")
        assert wait_until(page, lambda: copy.read_bytes() != stored, 20, "the notebook is saved")
        assert any(server.folder.rglob(".ipynb_checkpoints/*")), "here JupyterLab leaves its copies"
        assert contents(NOTEBOOKS) == before


@pytest.fixture(scope="module")
def verdict(server: Server, page: Any) -> Callable[[str], list[str]]:
    """Look at a broken notebook: what is said of it."""

    def _verdict(name: str) -> list[str]:
        path = server.folder / f"{name}.ipynb"
        return complaints(look(page, server, path.name), path)

    return _verdict


def test_a_right_notebook_passes(verdict: Any) -> None:
    assert verdict("90_right") == []


def test_a_wrong_notebook_is_told_apart(verdict: Any) -> None:
    found = "\n".join(verdict("91_wrong"))
    for words in (
        "cell 2: 0 of 1 figures",
        "cell 3: stderr: careful",
        "cell 4: stderr: ",
        "KeyError: 'missing'",
        "cell 5: its prompt is '[ ]:'",
        "cell 5: it shows nothing",
        "images/none.png in the text is not there",
        "light theme: 'pale' has a contrast of 3.",
    ):
        assert words in found, f"{words!r} is not in:\n{found}"


def test_black_on_transparent_fails_in_the_dark(verdict: Any) -> None:
    [found] = verdict("92_dark")
    assert found.startswith("dark theme: cell 2's figure: ") and "cannot be told from the page" in found


@pytest.mark.parametrize(("name", "words"), [("93_asks", "Select Kernel"), ("94_waits", "your name?")])
def test_a_question_is_seen(name: str, words: str, verdict: Any) -> None:
    assert any(c.startswith("the page asks: ") and words in c for c in verdict(name))


def test_contrast_is_wcags() -> None:
    assert contrast([0, 0, 0], [255, 255, 255]) == pytest.approx(21)
    assert contrast([118, 118, 118], [255, 255, 255]) == pytest.approx(4.54, abs=0.01)


def draw(face: str, ink: str) -> bytes:
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2), facecolor=face)
    figure.text(0.1, 0.4, "can you read this?", color=ink, fontsize=20)
    out = io.BytesIO()
    figure.savefig(out, facecolor=face)
    return out.getvalue()


@pytest.mark.parametrize(
    ("face", "ink", "light", "dark"),
    [
        ("white", "black", True, True),
        ("#111111", "white", True, True),
        ("none", "black", True, False),
        ("none", "white", False, True),
        ("none", "#888888", True, True),  # 3.5 on white, 5.3 on black: grey is the one ink for both
        ("white", "white", False, False),
    ],
)
def test_ink_must_stand_out_on_both_pages(face: str, ink: str, light: bool, dark: bool) -> None:
    white, black = [255, 255, 255], [17, 17, 17]
    png = draw(face, ink)
    assert (figure_complaint(png, white, black) is None) == light
    assert (figure_complaint(png, black, white) is None) == dark
