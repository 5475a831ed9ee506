"""Parts shared by all pictures: colours, fonts, legends, files.

Matplotlib is needed, and imported only when a picture is made; its global state is left alone.
"""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Pattern of Matplotlib's warning about a missing character.
MISSING_GLYPH = r"Glyph (\d+) .* missing from"
MISSING = "matplotlib is missing: pip install matplotlib"
# Okabe and Ito's colours, without the yellow that is pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
# The kinds of outputs and attention that have one of the colours, the same in all pictures.
_KINDS = ("softmax", "entmax15", "alpha_relu", "sparsemax", "rela_g", "rela_i", "relu")
_OTHER_NAMES = {"1.5-entmax": "entmax15", "1.5-relu": "alpha_relu", "rela-": "rela_"}
# What the tokeniser of Moses writes in place of some characters.
_ESCAPED = re.compile("&(?:amp|apos|quot|lt|gt|#124|#91|#93);")
# Relative difference below which two values count as equal.
_SAME = 1e-3


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each model.

    A model whose name has a kind in it gets the colour of that kind, and the attention of
    ``OUTPUT+ATTENTION`` counts. Other models, and further ones of a kind, get the colours that are
    left, or shades of one scale if there are too few.
    """
    names = list(dict.fromkeys(names))
    if len(names) > len(COLOURS):
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        scale = colormaps["viridis"]
        return {n: to_hex(scale(0.95 * i / (len(names) - 1))) for i, n in enumerate(names)}
    found: dict[str, str] = {}
    # The kinds themselves come before their variants.
    for name in sorted(names, key=lambda name: name not in _KINDS):
        colour = COLOURS[_KINDS.index(kind)] if (kind := _kind_in(name)) else ""
        if colour and colour not in found.values():
            found[name] = colour
    left = iter(colour for colour in COLOURS if colour not in found.values())
    return {name: found.get(name) or next(left) for name in names}


def _kind_in(name: str) -> str:
    """Return the longest kind whose name is a word in the last part of a name, or nothing."""
    part = name.lower().rpartition("+")[2]
    for other, kind in _OTHER_NAMES.items():
        part = part.replace(other, kind)
    found = [kind for kind in _KINDS if re.search(rf"(?<![a-z0-9]){kind}(?![a-z0-9])", part)]
    return max(found, key=len, default="")


def is_flat(axes: Axes) -> bool:
    """Tell whether a panel has nothing but lines that never change."""
    if axes.patches:
        return False
    lines = [[y for y in line.get_ydata() if math.isfinite(y)] for line in axes.lines]
    if not all(len(values) > 1 for values in lines):  # of models with a single layer
        lines = [[value for values in lines for value in values]]
    return all(max(v) - min(v) <= _SAME * max(map(abs, v)) for v in lines if v)


def require_matplotlib() -> None:
    """Raise an AnalysisError with the command to install Matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise AnalysisError(MISSING) from error


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture in the format of its suffix (.png, .svg, .pdf); nothing is cut off.

    Raises:
        OSError: it cannot be written.
        ValueError: matplotlib does not know the format.
    """
    picture_format = path.suffix.lower().removeprefix(".")
    with replacing(path, binary=True) as file, _missing_characters_named_once():
        figure.savefig(file, format=picture_format, dpi=200, bbox_inches="tight", pad_inches=0.05)


@contextmanager
def _missing_characters_named_once() -> Iterator[None]:
    """Replace Matplotlib's warnings, one for each character and size, by one for them all."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    missing = ""
    for warning in caught:
        glyph = re.match(MISSING_GLYPH, str(warning.message))
        if glyph is None:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif chr(int(glyph[1])) not in missing:
            missing += chr(int(glyph[1]))
    if missing:
        warnings.warn(
            f"no installed font has {missing}: boxes are drawn in their place; install a font for "
            "the language, such as Noto Sans CJK for Chinese, Japanese and Korean",
            stacklevel=4,
        )


def save_pictures(figures: Mapping[str, Figure], path: Path) -> list[Path]:
    """Write pictures as :func:`save_figure` does, each with its name before the path's ending, and
    return their files: ``zeros`` at ``a/b.pdf`` is ``a/b-zeros.pdf``."""
    paths = [path.with_name(f"{path.stem}-{name}{path.suffix}") for name in figures]
    for figure, place in zip(figures.values(), paths, strict=True):
        save_figure(figure, place)
    return paths


def font_families(text: str) -> list[str]:
    """Return font families that together have the characters of a text, as far as they are
    installed.

    matplotlib takes each character from the first family that has it. The first is its own, which
    has Latin, Cyrillic and Greek; others follow only for what it lacks.
    """
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    families = ["DejaVu Sans"]
    entries = {entry.name: entry for entry in font_manager.fontManager.ttflist if _is_plain(entry)}
    missing = {ord(character) for character in text}
    missing -= FT2Font(font_manager.findfont(families[0])).get_charmap().keys()
    for name in sorted(entries):
        if not missing:
            break
        found = missing & FT2Font(entries[name].fname).get_charmap().keys()
        if found:
            families.append(name)
            missing -= found
    return families


def _is_plain(entry: Any) -> bool:
    """Tell whether a font is upright, of normal weight, and no font of placeholders."""
    return (entry.style, entry.weight) == ("normal", 400) and "Last Resort" not in entry.name


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> Figure:
    """Make a figure of panels with grid lines, laid out with room for legends and labels.

    The panels of a column share their x-axis, those of a row their y-axis.

    Args:
        width, height: in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row").flat:
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def add_legend(figure: Figure, columns: int = 2) -> None:
    """Add a legend for all panels above them, with fewer columns if the names are long."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    # A character is about 0.07 inches wide, the sample of the line beside it 0.6.
    fitting = int(figure.get_figwidth() / (0.07 * longest + 0.6))
    legend = figure.legend(
        handles.values(),
        handles,
        loc="outside upper left",
        ncols=max(1, min(columns, fitting)),
        frameon=False,
        fontsize=9,
        handlelength=2.6,
    )
    families = font_families("".join(handles))
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_fontfamily(families)


def draw_updates(axes: Axes, curve: Mapping[str, Sequence[Any]], name: str, **style: Any) -> None:
    """Draw a number of a training over its ``updates``, unless no value is known (not None)."""
    values = [math.nan if value is None else value for value in curve.get(name, ())]
    if not all(map(math.isnan, values)):
        axes.plot(curve["updates"], values, **style)


def draw_bars(
    axes: Axes, groups: Sequence[str], bars: Sequence[tuple[Sequence[float], Mapping[str, Any]]]
) -> None:
    """Draw groups of bars side by side.

    Args:
        groups: their names.
        bars: for each model its value in each group, and the label and the look of its bars.
    """
    width = 0.8 / len(bars)
    for number, (values, style) in enumerate(bars):
        places = [place + width * (number - (len(bars) - 1) / 2) for place in range(len(values))]
        axes.bar(places, values, width, edgecolor="white", **style)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")


def unescaped(content: Any) -> Any:
    """Return JSON whose texts have the characters that Moses escapes, such as ' for &apos;."""
    if isinstance(content, dict):
        return {key: unescaped(value) for key, value in content.items()}
    if isinstance(content, list):
        return list(map(unescaped, content))
    if isinstance(content, str):
        return _ESCAPED.sub(lambda found: html.unescape(found[0]), content)
    return content


def plain(name: str) -> str:
    """Strip leading underscores from a name: Matplotlib hides labels that begin with one."""
    return name.lstrip("_") or "-"
