"""What the last batch says otherwise than the stored notebooks: `python -m utils.changes [build/report.json]`.

Markdown, for an issue or a log. The exit status is 0 if nothing changed, 1 if something did, 2 if there is no report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from utils.claims import Answer, answers, platform
from utils.paths import BUILD
from utils.report import Result, read_results
from utils.versions import FAILS, LACKS, outcome


def changes(results: Mapping[str, Result], stored: Sequence[Answer]) -> list[str]:
    """One line for each notebook that fails or lacks something of torch, and for each verdict that is another."""
    lines = []
    before = {(answer.row.id, answer.platform): answer for answer in stored}
    for name, result in sorted(results.items()):
        found = outcome(result)
        if found.state in (FAILS, LACKS):
            lines += [f"- `{name}` {found.state}: {detail}" for detail in found.detail]
        for told in result.verdicts:
            old = before.get((told["row"], platform(result.device) if told.get("gated") else "cpu"))
            if old is None:
                continue
            if old.standing != told["verdict"]:
                note = f": {told['note']}" if told["note"] else ""
                lines.append(f"- `{told['row']}` was *{old.standing}* and now **{told['verdict']}**{note}")
            elif old.note != told["note"]:
                lines.append(
                    f"- `{told['row']}` still {told['verdict']}, but says: {told['note']} (before: {old.note})"
                )
    return lines


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m utils.changes", description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="?", type=Path, default=BUILD / "report.json")
    path = parser.parse_args(argv).report
    results = read_results(path)
    if not results:
        print(f"changes: {path} is no report of a batch; run make run first", file=sys.stderr)
        return 2
    machines = dict.fromkeys(r.machine["line"] for r in results.values() if r.machine)
    lines = changes(results, answers())
    print(
        "\n".join(
            [*machines, "", *(lines or ["Nothing changed: every notebook runs, and every verdict is as stored."])]
        )
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
