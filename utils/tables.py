"""Tables of the start page: the ledger with a search box, and Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from utils.claims import DIFFERS, HOLDS, NEEDS, PLANNED, PLATFORMS, RELEASES, TOPICS, Answer, standing
from utils.figures import BLUE, GREEN, GREY, ORANGE

PULL = "https://github.com/pytorch/pytorch/pull/"  # GitHub leads on to the issue where the number is that of an issue
SWATCH = "display:inline-block;width:.75em;height:.75em;border-radius:2px"  # text in these colours would be too pale
COLOURS = {HOLDS: GREEN, DIFFERS: ORANGE, NEEDS: BLUE, PLANNED: GREY}  # as in the figure

# No script element: the search works wherever HTML output is trusted.
SEARCH = (
    '<input type="search" placeholder="search: mps, export, differs …" '
    'aria-label="search the ledger" style="width:100%;padding:6px 10px;margin:0 0 6px;box-sizing:border-box" '
    "oninput=\"for (const r of this.parentNode.querySelectorAll('tbody tr')) "
    "r.hidden = !this.value.toLowerCase().split(' ').every(w => r.textContent.toLowerCase().includes(w))\">"
)


def chosen(found: Iterable[Answer], release: str = "", platform: str = "", topic: str = "") -> list[list[Answer]]:
    """The answers by row, for the rows of a release, a platform and a topic; "" is any. Rows with a verdict are first.

    Raises ValueError that lists what there is.
    """
    for name, value, known in (
        ("release", release, RELEASES),
        ("platform", platform, PLATFORMS),
        ("topic", topic, TOPICS),
    ):
        if value and value not in known:
            raise ValueError(f'there is no {name} {value!r}; choose one of {", ".join(known)}, or "" for all')
    by_row: dict[str, list[Answer]] = {}
    for answer in found:
        row = answer.row
        if release in ("", row.release) and platform in ("", *row.platforms) and topic in ("", *row.topics):
            by_row.setdefault(row.id, []).append(answer)
    return sorted(by_row.values(), key=lambda of_row: standing(of_row) == PLANNED)


def show_ledger(found: Iterable[Answer], release: str = "", platform: str = "", topic: str = "") -> None:
    """Show the ledger as a table with a search box; plain text has a line a row.

    Args:
        found: what `utils.claims.answers` gives.
        release: "2.8", "2.12", "2.14", "2.15", or "" for all.
        platform: of utils.claims.PLATFORMS, or "".
        topic: of utils.claims.TOPICS, or "".

    Raises:
        ValueError: no such release, platform or topic.
    """
    from IPython.display import display

    rows = chosen(found, release, platform, topic)
    lines = [
        f"{row.id:<24} {standing(of_row):<15} {', '.join(row.platforms):<26} {row.notebook}"
        for of_row in rows
        for row in [of_row[0].row]
    ]
    heads = "".join(
        f'<th style="text-align:left">{name}</th>' for name in ("row", "announced", "for", "stands", "notebook")
    )
    body = "".join(_line(of_row) for of_row in rows)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    page = f'<div>{SEARCH}<div style="max-height:460px;overflow:auto">{table}</div></div>'
    display({"text/plain": "\n".join([*lines, f"{len(rows)} rows"]), "text/html": page}, raw=True)


def _line(of_row: Sequence[Answer]) -> str:
    row, word = of_row[0].row, standing(of_row)
    told = [f"not run yet: needs {a.note}" if a.standing == NEEDS else a.note for a in of_row if a.note]
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in told)
    refs = " ".join(f'<a href="{PULL}{number}" target="_blank">#{number}</a>' for number in row.refs)
    book = f'<a href="{row.notebook}.ipynb">{row.notebook[:2]}</a>' if row.notebook != PLANNED else ""
    cells = (
        escape(row.id),
        f"{escape(row.sentence)}<br><small>{escape(', '.join(row.topics))}{' · ' if refs else ''}{refs}</small>",
        " ".join(row.platforms),
        f'<span style="{SWATCH};background:{COLOURS[word]}"></span> <b>{word}</b>{notes}',
        book,
    )
    return "<tr>" + "".join(f'<td style="text-align:left;vertical-align:top">{c}</td>' for c in cells) + "</tr>"


def show_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Show a table whose cells are Markdown, links included."""
    from IPython.display import Markdown, display

    lines = [f"| {' | '.join(heads)} |", "|" + " :-- |" * len(heads), *(f"| {' | '.join(row)} |" for row in rows)]
    display(Markdown("\n".join(lines)))
