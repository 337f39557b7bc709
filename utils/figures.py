"""One look for all figures: a light card that reads well on JupyterLab's light and dark themes, small as a PNG."""

from __future__ import annotations

#: Okabe and Ito's colours, which people with colour-blindness can tell apart, in the order in which to use them.
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#6B7280"
PALETTE = (BLUE, RED, GREEN, ORANGE, PURPLE, GREY)

STYLE = {
    "figure.figsize": (8.0, 4.0),
    "figure.dpi": 90,
    "figure.facecolor": "#FBFBF9",
    "savefig.facecolor": "#FBFBF9",
    "figure.constrained_layout.use": True,
    "axes.facecolor": "#FBFBF9",
    "axes.edgecolor": "#9AA0A6",
    "axes.labelcolor": "#202124",
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E6E9",
    "grid.linewidth": 0.8,
    "text.color": "#202124",
    "xtick.color": "#5F6368",
    "ytick.color": "#5F6368",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 10.5,
    "svg.hashsalt": "whatsnew",
}


def font_is_missing(name: str = STYLE["font.family"]) -> bool:
    """Is the style's font not there? It comes with matplotlib, but some distributions pack it apart."""
    from matplotlib.font_manager import findfont

    try:
        findfont(name, fallback_to_default=False)
    except ValueError:
        return True
    return False


def use_style() -> str | None:
    """Make the style the default of this kernel, and keep matplotlib's version out of the PNG files.

    Returns what to tell the reader: that figures look otherwise, where the font is missing.
    """
    import logging

    import matplotlib.pyplot as plt
    from IPython import get_ipython

    plt.rcParams.update(STYLE | {"axes.prop_cycle": plt.cycler(color=PALETTE)})
    if (shell := get_ipython()) is not None and hasattr(shell, "kernel"):
        shell.run_line_magic("matplotlib", "inline")
        shell.run_line_magic("config", "InlineBackend.print_figure_kwargs = {'metadata': {'Software': None}}")
    if not font_is_missing():
        return None
    plt.rcParams["font.family"] = "sans-serif"
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # one line, and not one for each text
    return f"{STYLE['font.family']} is missing, so figures use another font: install fonts-dejavu-core"
