"""How a batch shows that it goes on: bars for a person at a terminal, lines for a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from utils.jobs import PASSED
from utils.report import Result


class Progress:
    """Bars drawn by rich on a terminal; elsewhere, and in CI, one line for each notebook that ends."""

    def __init__(self, total: int) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.total, self.ended = total, 0
        self.bars: Any = None
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        if self.console.is_terminal and not os.environ.get("CI"):
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            self.bars = Bars(
                SpinnerColumn(),
                TextColumn("{task.description:<28}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[memory]}"),
                console=self.console,
            )
            self.bars.start()
            self.tasks[""] = self.bars.add_task("notebooks", total=self.total, memory="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def start(self, result: Result, path: Path) -> None:
        """A notebook starts, or starts again."""
        if self.bars:
            from utils.catalog import code_cells, read

            self.forget(result)
            self.tasks[result.key] = self.bars.add_task(result.key, total=len(code_cells(read(path))), memory="")

    def forget(self, result: Result) -> None:
        """Take its bar away: it ended, or starts again on another worker."""
        if result.key in self.tasks:
            self.bars.remove_task(self.tasks.pop(result.key))

    def tell(self, result: Result, cell: int) -> None:
        """A notebook is at this cell."""
        if self.bars:
            self.bars.update(self.tasks[result.key], completed=max(0, cell - 1), memory=f"{result.peak_mb:.0f} MB")

    def end(self, result: Result) -> None:
        """A notebook ended: its line stays on the screen."""
        self.ended += 1
        if self.bars:
            self.forget(result)
            self.bars.update(self.tasks[""], completed=self.ended)
        style = "green" if result.status == PASSED else "bold red"
        self.console.print(f"[{self.ended}/{self.total}] {result.line}", style=style, markup=False)
