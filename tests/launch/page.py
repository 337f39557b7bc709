"""JupyterLab as a person meets it: the command of `make lab`, a browser, the menus, and what the page then shows.

`look` brings back facts, `complaints` judges them and touches no page: a test can give it a page that is wrong.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from launch.contrast import TEXT, contrast, figure_complaint, over
from utils.catalog import away, cell_requires, read
from utils.paths import ROOT

MARK = "LAUNCH_TEST"  # in the environment of all that the server starts, so that what is left over can be told
CELLS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell"
SCROLLER = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
RUN_LIMIT = 240  # seconds for one notebook; a cold compile on a busy machine takes a good part of it

#: What asks the reader something: a dialog (kernel picker, errors), a toast (news), a cell that waits for input().
WATCH = """
const seen = new WeakSet();
new MutationObserver(() => {
  for (const e of document.querySelectorAll('.jp-Dialog, .Toastify__toast, .jp-Stdin'))
    if (!seen.has(e)) { seen.add(e); setTimeout(() => tellQuestion(e.textContent), 50); }
}).observe(document, {childList: true, subtree: true});
"""

FACTS = """(cells) => [...document.querySelectorAll(cells)].map(cell => ({
  prompt: cell.querySelector('.jp-InputPrompt').textContent.trim(),
  mimes: [...cell.querySelectorAll('.jp-OutputArea-output')].map(o => (o.closest('[data-mime-type]')
          || o.querySelector('[data-mime-type]') || o).getAttribute('data-mime-type') || ''),
  text: [...cell.querySelectorAll('.jp-OutputArea-output')].map(o => o.textContent).join('\\n'),
  images: [...cell.querySelectorAll('.jp-OutputArea-output img')].map(i => ({width: i.naturalWidth, src: i.src})),
}))"""

#: Each run of text in Markdown and outputs, once per colour: [text, [r, g, b, a], grounds from the inside out].
#: Not the code in a text: the colours of its syntax are JupyterLab's own.
COLOURS = """(panel) => {
  const rgba = s => { const n = s.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], (n[3] ?? 1) * 255]; };
  const found = new Map();
  for (const root of document.querySelectorAll(panel + ' .jp-RenderedMarkdown, ' + panel + ' .jp-OutputArea-output')) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
      const skip = '.jp-InternalAnchorLink, .jp-RenderedMarkdown pre, mjx-assistive-mml, script, style';
      if (!text || e.closest(skip)) continue;
      const grounds = [];
      for (let up = e; up; up = up.parentElement) {
        const c = rgba(getComputedStyle(up).backgroundColor);
        if (c[3] > 0) grounds.push(c);
        if (c[3] === 255) break;
      }
      const colour = rgba(getComputedStyle(e).color), key = JSON.stringify([colour, grounds]);
      if (!found.has(key)) found.set(key, [text.slice(0, 60), colour, grounds]);
    }
  }
  return [...found.values()];
}"""

GROUND = """(panel) => {
  for (let up = document.querySelector(panel); up; up = up.parentElement) {
    const n = getComputedStyle(up).backgroundColor.match(/[\\d.]+/g).map(Number);
    if ((n[3] ?? 1) === 1) return n.slice(0, 3);
  }
  return [255, 255, 255];
}"""

WIDE = """(cells) => [...document.querySelectorAll(cells)].map((c, i) => [i + 1, c.querySelector('.cm-scroller')])
  .filter(([_, s]) => s && s.scrollWidth > s.clientWidth + 1).map(([n, s]) => [n, s.scrollWidth - s.clientWidth])"""


@dataclass
class Server:
    """A running JupyterLab."""

    url: str
    token: str
    folder: Path  # the notebooks that it serves: a copy
    opens: str  # the address that it opens in the user's browser
    command: str
    log: Path
    seconds: float  # until it answered

    def ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text and path.startswith("/api") else text

    def end_kernels(self) -> None:
        """JupyterLab gives a notebook that is opened again the kernel that it had, with its numbers and variables."""
        for session in self.ask("/api/sessions"):
            self.ask(f"/api/sessions/{session['id']}", "DELETE")


@dataclass
class Theme:
    """How a theme colours a notebook."""

    page: list[float]  # colour behind the figures
    text: list[tuple[str, list[float], list[list[float]]]]
    shot: bytes = b""


@dataclass
class Facts:
    """What the page showed of one notebook after Run All."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    status: str = ""
    broken_images: list[str] = field(default_factory=list)  # in Markdown
    broken_maths: int = 0
    toc: list[str] = field(default_factory=list)
    toc_lost: list[str] = field(default_factory=list)  # entries whose click did not bring their heading into view
    themes: dict[str, Theme] = field(default_factory=dict)
    wide: list[list[int]] = field(default_factory=list)  # code cells with lines that do not fit: number, pixels
    load_seconds: float = 0.0
    run_seconds: float = 0.0


def lab_command(arguments: str, prefix: str = sys.prefix) -> str:
    """The command line of `make lab` in this environment, with more arguments, as make itself would run it."""
    done = subprocess.run(
        ["make", "-n", "lab", f"VENV={prefix}", f"ARGS={arguments}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")},
    )  # fmt: skip
    return done.stdout.strip().splitlines()[-1].strip()


def user_environment(**more: str) -> dict[str, str]:
    """The environment of a person at a terminal: without what pytest and this project's plugin put there."""
    ours = ("PYTHONPATH", "OMP_NUM_THREADS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(("PYTEST_", "JUPYTER", "JPY_"))}
    return kept | more


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def lab(folder: Path, scratch: Path) -> Iterator[Server]:
    """Start JupyterLab with the command of `make lab` on a copy of the checkout, as at a first start: no settings.

    Ended on leaving; raises AssertionError if a process that it started is left over.
    """
    token, port = secrets.token_hex(16), free_port()
    options = [
        "--no-browser --ip=127.0.0.1 --ServerApp.port_retries=0",
        f"--port={port} --IdentityProvider.token={token}",
        "--allow-root" if hasattr(os, "getuid") and os.getuid() == 0 else "",
    ]
    command = lab_command(" ".join(filter(None, options)))
    own = {
        name: str(scratch / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
        + ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    log = scratch / "lab.log"
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            command, shell=True, cwd=folder, env=user_environment(**own, **{MARK: token}),
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}", token, folder / "notebooks", "", command, log, 0.0)
    try:
        while True:
            with contextlib.suppress(OSError):
                server.ask("/api")
                break
            assert process.poll() is None, f"JupyterLab did not start:\n{log.read_text()[-3000:]}"
            assert time.monotonic() - began < 120, f"JupyterLab is not up after two minutes:\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
        server.seconds = time.monotonic() - began
        # the page that it would hand to the user's browser
        [page] = (scratch / "jupyter_runtime_dir").glob("jpserver-file-to-run-*-open.html")
        server.opens = re.search(r"url=(http[^\"]*)", page.read_text())[1].replace("&amp;", "&")
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.end_kernels()  # the server would wait for those that do not end at a signal
        for p in marked(token):  # the shell, the server
            with contextlib.suppress(psutil.Error):
                p.terminate()  # the server ends its kernels; SIGINT would make it ask
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        time.sleep(0.5)
        left = [f"{p.pid} {' '.join(p.cmdline())[:120]}" for p in psutil.wait_procs(marked(token), timeout=5)[1]]
        for p in marked(token):
            with contextlib.suppress(psutil.Error):
                p.kill()
    assert not left, f"processes left over: {left}"


def marked(token: str) -> list[psutil.Process]:
    """The processes that carry this token in their environment."""
    found = []
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if p.environ().get(MARK) == token and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p)
    return found


def find_chromium() -> str | None:
    """A Chromium that the system has; playwright's own is asked for by None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def browser_page(profile: Path, width: int = 1280, height: int = 1600) -> Iterator[Any]:
    """A page in headless Chromium, whose `questions` list takes what asks the reader something."""
    from playwright.sync_api import sync_playwright

    switches = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    switches += ["--disable-component-update", "--disable-sync", "--no-first-run", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=find_chromium(), headless=True, args=switches,
            viewport={"width": width, "height": height},
        )  # fmt: skip
        page = context.pages[0]
        page.set_default_timeout(60_000)
        page.questions = []
        page.expose_function("tellQuestion", lambda question: page.questions.append(question))
        page.add_init_script(WATCH)
        try:
            yield page
        finally:
            context.close()


def menu(page: Any, *labels: str) -> None:
    """Choose in the menu bar: `menu(page, "Run", "Run All Cells")`."""
    page.click(f'.lm-MenuBar-itemLabel:text-is("{labels[0]}")')
    for label in labels[1:]:
        item = page.locator(f'.lm-Menu-itemLabel:text-is("{label}")').last
        item.hover()
        item.click()


def is_idle(page: Any) -> bool:
    status = page.locator('.jp-StatusBar-GroupItem:has-text("| Idle"), .jp-StatusBar-TextItem:has-text("| Idle")')
    return status.count() > 0


def wait_until(page: Any, condition: Any, seconds: float, what: str) -> bool:
    """Wait until the condition holds: True. False if the page asks a question meanwhile, which would wait for ever."""
    until = time.monotonic() + seconds
    while not condition():
        if page.questions:
            return False
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        page.wait_for_timeout(100)
    return True


def prompts(page: Any) -> list[str]:
    """Those of the cells whose source is shown; a folded one has none."""
    told = page.eval_on_selector_all(f"{CELLS} .jp-InputPrompt", "all => all.map(e => e.textContent.trim())")
    return [prompt for prompt in told if prompt]


@contextlib.contextmanager
def opened(page: Any, server: Server, notebook: str) -> Iterator[float | None]:
    """Open a notebook with a kernel of its own, and clear what it had, so that nothing stored is taken for new.

    Gives the seconds until the kernel was ready, or None if the page asks a question instead.
    """
    page.questions.clear()
    server.end_kernels()  # another test may have left this notebook's
    began = time.monotonic()
    try:
        page.goto(f"{server.url}/lab/tree/{notebook}?token={server.token}&reset")
        page.wait_for_selector(CELLS)
        # Run All before the kernel is there opens the kernel picker
        if not wait_until(page, lambda: is_idle(page), 90, "the kernel is ready"):
            yield None
            return
        seconds = time.monotonic() - began
        menu(page, "Edit", "Clear Outputs of All Cells")
        assert wait_until(page, lambda: not any(c["mimes"] for c in page.evaluate(FACTS, CELLS)), 20, "outputs cleared")
        yield seconds
    finally:
        server.end_kernels()


def look(page: Any, server: Server, notebook: str, themes: tuple[str, ...] = tuple(THEMES)) -> Facts:
    """Open a notebook, Run All, and bring back what the page shows."""
    facts = Facts(questions=page.questions)
    with opened(page, server, notebook) as seconds:
        if seconds is None:
            return facts
        facts.load_seconds = seconds
        began = time.monotonic()
        menu(page, "Run", "Run All Cells")
        wait_until(page, lambda: any(p != "[ ]:" for p in prompts(page)), 30, "the first cell starts")
        if not wait_until(page, lambda: not any("*" in p for p in prompts(page)), RUN_LIMIT, "Run All ends"):
            facts.cells = page.evaluate(FACTS, CELLS)
            return facts
        wait_until(page, lambda: is_idle(page), 30, "the kernel is idle")
        facts.run_seconds = time.monotonic() - began
        page.wait_for_timeout(300)  # the last output may still be drawn
        facts.status = "Idle" if is_idle(page) else "not idle"
        scroll_through(page)
        facts.cells = page.evaluate(FACTS, CELLS)
        facts.wide = page.evaluate(WIDE, CELLS)
        markdown = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-RenderedMarkdown"
        facts.broken_images = page.eval_on_selector_all(
            f"{markdown} img", "all => all.filter(i => !i.naturalWidth).map(i => i.src.split('?')[0])"
        )
        facts.broken_maths = page.locator(f"{markdown} mjx-merror").count()
        use_toc(page, facts)
        for theme in themes:
            facts.themes[theme] = show_theme(page, theme)
        return facts


def scroll_through(page: Any) -> None:
    """Bring each part into view once: the browser skips the layout of what was never seen."""
    page.evaluate(
        """async (outer) => { const s = document.querySelector(outer);
            for (let y = 0; y < s.scrollHeight; y += s.clientHeight / 2) {
              s.scrollTop = y; await new Promise(requestAnimationFrame); }
            s.scrollTop = 0; await new Promise(requestAnimationFrame); }""",
        SCROLLER,
    )


def use_toc(page: Any, facts: Facts) -> None:
    """Open the table of contents, click entries, see whether their headings come into view, close it again."""
    tab = page.locator('.lm-TabBar-tab[data-id="table-of-contents"]')
    tab.click()
    entries = page.locator("#table-of-contents .jp-tocItem-content")
    entries.first.wait_for()
    facts.toc = [text.strip() for text in entries.all_inner_texts()]
    count = len(facts.toc)
    for index in sorted({0, count // 2, count - 1}, reverse=True):
        entries.nth(index).click()
        seen = """([outer, text]) => { const box = document.querySelector(outer).getBoundingClientRect();
            return [...document.querySelectorAll(outer + ' .jp-RenderedMarkdown :is(h1,h2,h3,h4)')].some(h => {
              const r = h.getBoundingClientRect(), own = h.textContent.replace('¶', '').trim();
              return own === text && r.top >= box.top - 5 && r.bottom <= box.bottom + 5; }) }"""
        try:
            page.wait_for_function(seen, arg=[SCROLLER, facts.toc[index]], timeout=5_000)
        except Exception:
            facts.toc_lost.append(facts.toc[index])
    tab.click()


def show_theme(page: Any, theme: str) -> Theme:
    """Switch the theme in the menu; read its colours and take the notebook's picture from top to bottom."""
    light = "true" if theme == "light" else "false"
    menu(page, "Settings", "Theme", THEMES[theme])
    page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")
    page.wait_for_timeout(700)  # the style sheet is fetched
    panel = ".jp-NotebookPanel:not(.lm-mod-hidden)"
    return Theme(page.evaluate(GROUND, SCROLLER), page.evaluate(COLOURS, panel), picture(page))


def picture(page: Any) -> bytes:
    """The whole notebook as one PNG, stitched from what scrolling shows."""
    from PIL import Image

    page.keyboard.press("Escape")
    box = page.locator(SCROLLER).bounding_box()
    scroll = "([outer, y]) => { const s = document.querySelector(outer); s.scrollTop = y; return s.scrollTop; }"
    parts, want = [], 0.0
    while True:
        top = page.evaluate(scroll, [SCROLLER, want])
        page.wait_for_timeout(80)
        parts.append((int(top), Image.open(io.BytesIO(page.screenshot(clip=box)))))
        if top < want - 1 or len(parts) > 60:
            break
        want = top + int(box["height"]) - 40
    sheet = Image.new("RGB", (parts[0][1].width, parts[-1][0] + parts[-1][1].height))
    for top, part in parts:
        sheet.paste(part, (0, top))
    out = io.BytesIO()
    sheet.save(out, "PNG", optimize=False)
    page.evaluate(scroll, [SCROLLER, 0])
    return out.getvalue()


def complaints(facts: Facts, path: Path) -> list[str]:
    """What is wrong with the page, given the notebook's file. Empty if a reader sees what they should."""
    found = [f"the page asks: {question[:200]}" for question in facts.questions]
    specs = list(cell_requires(read(path)))
    if len(facts.cells) != len(specs):
        found.append(f"{len(facts.cells)} code cells on the page, {len(specs)} in the file")
        return found
    for number, ((cell, needs), shown) in enumerate(zip(specs, facts.cells, strict=True), 1):
        found += [f"cell {number}: {what}" for what in _wrong_with(cell, away(needs), number, shown)]
    if facts.status != "Idle":
        found.append("the kernel is not idle")
    found += [f"the picture {src} in the text is not there" for src in facts.broken_images]
    if facts.broken_maths:
        found.append(f"{facts.broken_maths} formulas cannot be drawn")
    found += _wrong_with_toc(facts, path)
    for name, theme in facts.themes.items():
        found += [f"{name} theme: {what}" for what in _illegible(theme, facts)]
    return found


def _wrong_with(cell: Any, reason: str | None, number: int, shown: dict[str, Any]) -> Iterator[str]:
    folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)  # then what it shows proves that it ran
    if shown["prompt"] != ("" if folded else f"[{number}]:"):
        yield f"its prompt is {shown['prompt']!r}: it did not run in its turn"
    for mime in shown["mimes"]:
        if mime.endswith((".error", ".stderr")):
            yield f"{mime.rpartition('.')[2]}: {shown['text'].strip()[-200:]}"
    if reason:
        if f"Skipped: {reason}." not in shown["text"]:
            yield f"it should say 'Skipped: {reason}.', and says {shown['text'].strip()[:120]!r}"
        return
    if cell.outputs and not shown["mimes"]:
        yield "it shows nothing, and has an output in the file"
    stored = sum("image/png" in output.get("data", {}) for output in cell.outputs)
    if len(shown["images"]) < stored:
        yield f"{len(shown['images'])} of {stored} figures"
    if any(not image["width"] for image in shown["images"]):
        yield "a figure is not drawn"


def headings(path: Path) -> list[str]:
    """The headings of a notebook's text, as plain words."""
    found = []
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            fenced = False
            for line in cell.source.splitlines():
                fenced ^= line.startswith("```")
                if not fenced and line.startswith("#"):
                    found.append(line.lstrip("#").strip())
    return found


def _wrong_with_toc(facts: Facts, path: Path) -> Iterator[str]:
    missing = len(headings(path)) - len(facts.toc)
    if missing > 0:
        yield f"the table of contents lacks {missing} headings"
    for entry in facts.toc_lost:
        yield f"a click on {entry!r} in the table of contents does not show it"


def _illegible(theme: Theme, facts: Facts) -> Iterator[str]:
    import base64

    for text, colour, grounds in theme.text:
        ground: Any = theme.page
        for layer in reversed(grounds):
            ground = over(layer, ground)
        if (ratio := float(contrast(over(colour, ground), ground))) < TEXT:
            yield f"{text!r} has a contrast of {ratio:.1f} against its ground"
    others = [t.page for t in facts.themes.values() if t is not theme] or [theme.page]
    for number, cell in enumerate(facts.cells, 1):
        for image in cell["images"]:
            if image["src"].startswith("data:image/png;base64,"):
                png = base64.b64decode(image["src"].partition(",")[2])
                if what := figure_complaint(png, theme.page, others[0]):
                    yield f"cell {number}'s figure: {what}"
