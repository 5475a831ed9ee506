"""The tree of all translations to which a sparse model gives nonzero probability (S2S, Fig. 1)."""

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fairseq_sparse.generation.exact_search import NextTokens
from fairseq_sparse.measure.translator import Translator
from fairseq_sparse.plots.pictures import font_families

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Prefixes that are expanded at once: few, so that the most probable ones come first.
_AT_ONCE = 8
# Default depth limit of a tree: prefixes of this length can only end.
MAX_LEN = 200
# Inches of a drawing; a step is as wide as its longest token needs, up to a limit.
_STEP, _LETTER, _WIDEST_STEP, _LEAF = 0.65, 0.1, 1.15, 0.3


@dataclass
class SupportNode:
    """A prefix of a translation, named by its last token.

    Attributes:
        token: index of the last token; -1 for the root.
        probability: of that token, given those before it (for alpha-ReLU its raw value).
        total: product of the probabilities from the root.
        children: the continuations of nonzero probability, most probable first; none at EOS.
        expanded: whether the children are known. If not, a limit ended the tree here.
    """

    token: int
    probability: float
    total: float
    children: list["SupportNode"] = field(default_factory=list)
    expanded: bool = False

    def walk(self) -> Iterator["SupportNode"]:
        """Yield this node and all below it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class SupportTree:
    """The translations of nonzero probability of a sentence, as :func:`grow` finds them.

    Attributes:
        root: the empty prefix.
        eos: the token that ends a translation.
        complete: whether the tree has all translations of nonzero probability.
    """

    root: SupportNode
    eos: int
    complete: bool

    @property
    def translations(self) -> int:
        """The number of complete translations in the tree."""
        return sum(node.token == self.eos for node in self.root.walk())

    @property
    def mass(self) -> float:
        """The sum of the probabilities of the complete translations."""
        return math.fsum(node.total for node in self.root.walk() if node.token == self.eos)


def grow(next_tokens: NextTokens, most_nodes: int = 1000, max_len: int = MAX_LEN) -> SupportTree:
    """Expand the most probable prefixes until all are expanded, or *most_nodes* of them are.

    Args:
        next_tokens: the distributions after the prefixes of one sentence's translations.
        most_nodes: largest number of prefixes to expand; a dense model always reaches it.
        max_len: prefixes of this length can only end.
    """
    root = SupportNode(-1, 1.0, 1.0)
    waiting = [(-1.0, 0, (), root)]
    created = expanded = 0
    while waiting and expanded < most_nodes:
        width = min(_AT_ONCE, len(waiting), most_nodes - expanded)
        chosen = [heapq.heappop(waiting) for _ in range(width)]
        rows = next_tokens.log_probs([prefix for _, _, prefix, _ in chosen]).exp().cpu()
        expanded += width
        for (_, _, prefix, node), row in zip(chosen, rows, strict=True):
            node.expanded = True
            for token in row.argsort(descending=True)[: int((row > 0).sum())].tolist():
                p = row[token].item()
                child = SupportNode(token, p, node.total * p, expanded=token == next_tokens.eos)
                node.children.append(child)
                created += 1
                if token != next_tokens.eos and len(prefix) < max_len:
                    heapq.heappush(waiting, (-child.total, created, (*prefix, token), child))
    complete = all(node.expanded for node in root.walk())
    return SupportTree(root, next_tokens.eos, complete)


def trees_of(
    translator: Translator, sample: dict[str, Any], most_nodes: int
) -> Iterator[tuple[int, SupportTree]]:
    """Yield the number in the data set, and the tree, of each sentence of a batch."""
    models = translator.models
    # Learned positions are limited, and the EOS that begins each prefix takes the first.
    max_len = min(MAX_LEN, *(model.max_decoder_positions() - 1 for model in models))
    with torch.no_grad():
        encoded = [model.encoder.forward_torchscript(sample["net_input"]) for model in models]
    for row, number in enumerate(sample["id"].tolist()):
        words = translator.task.target_dictionary
        ends = (words.pad(), words.eos(), words.eos())
        next_tokens = NextTokens.of_sentence(models, encoded, row, *ends)
        yield number, grow(next_tokens, most_nodes, max_len)


def title_of(tree: SupportTree, sentence: str, source: str) -> str:
    """Return two lines about a tree: its sentence and size, and the source."""
    whole = "all" if tree.complete else "only some of the"
    return (
        f"{sentence}: {whole} translations, {tree.translations} with total probability "
        f"{tree.mass:.4g}\nsource: {source}"
    )


def as_text(tree: SupportTree, word: Callable[[int], str], least: float = 0.0) -> str:
    """Return the tree with one node per line, indented by depth; ``...`` marks omitted parts.

    Args:
        tree: the tree.
        word: gives the text of a token.
        least: leave out nodes with a smaller total probability.
    """
    lines: list[str] = []

    def add(node: SupportNode, depth: int) -> None:
        if node is not tree.root:
            rest = "" if node.expanded else " ..."
            end = f"  (in all {node.total:.4g})" if node.token == tree.eos else rest
            lines.append(f"{'  ' * depth}{word(node.token)} {node.probability:.4g}{end}")
        shown = [child for child in node.children if child.total >= least]
        for child in shown:
            add(child, depth + (node is not tree.root))
        omitted = len(node.children) - len(shown)
        if omitted:
            lines.append(f"{'  ' * (depth + (node is not tree.root))}... {omitted} more")

    add(tree.root, 0)
    return "\n".join(lines)


def as_json(tree: SupportTree, word: Callable[[int], str]) -> dict[str, Any]:
    """Return the tree as nested dictionaries."""

    def convert(node: SupportNode) -> dict[str, Any]:
        return {
            "token": "" if node is tree.root else word(node.token),
            "probability": node.probability,
            "total": node.total,
            "expanded": node.expanded,
            "children": [convert(child) for child in node.children],
        }

    return {
        "complete": tree.complete,
        "translations": tree.translations,
        "mass": tree.mass,
        "root": convert(tree.root),
    }


def draw(
    tree: SupportTree, word: Callable[[int], str], least: float = 0.0, source: str = ""
) -> "Figure":
    """Draw the tree from left to right, with branches as wide as their total probability.

    Args:
        tree: the tree.
        word: gives the text of a token.
        least: leave out nodes with a smaller total probability.
        source: the source sentence, drawn above the tree.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    places = _places(tree, least)
    depth = max(x for x, _ in places.values())
    height = max(y for _, y in places.values()) + 1
    shown = [node.token for node in tree.root.walk() if node.children and id(node) in places]
    longest = max((len(word(token)) for token in shown[1:]), default=0)
    step = min(_STEP + _LETTER * longest, _WIDEST_STEP)
    figure = Figure(figsize=(step * (depth + 1.2), max(_LEAF * height + 0.4, 1.0)))
    words = [word(node.token) for node in tree.root.walk() if node is not tree.root]
    style = {"fontsize": 9, "fontfamily": font_families("".join([source, *words]))}
    style["parse_math"] = False
    figure.text(0, 1, source, va="bottom", **style)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.3, depth + 0.9)
    axes.set_ylim(height - 0.3, -0.7)
    for node in tree.root.walk():
        if id(node) not in places:
            continue
        place = places[id(node)]
        shown = [child for child in node.children if id(child) in places]
        for child in shown:
            _draw_branch(axes, child, place, places[id(child)])
        text = "" if node is tree.root else word(node.token)
        text += " …" if len(shown) < len(node.children) or not node.expanded else ""
        _draw_node(axes, place, text or "•", node.token == tree.eos, style)
    return figure


def _draw_branch(
    axes: "Axes", child: SupportNode, start: tuple[float, float], end: tuple[float, float]
) -> None:
    """Draw the branch to a node, labelled with the node's probability."""
    (x, y), (cx, cy) = start, end
    width = 0.6 + 5 * min(child.total, 1.0)
    axes.plot([x, cx], [y, cy], color="#9db8d2", linewidth=width, zorder=1)
    axes.text(
        x + 0.42 * (cx - x),
        y + 0.42 * (cy - y),
        f"{child.probability:.2g}",
        fontsize=7,
        ha="center",
        color="#444444",
        va="bottom",
        zorder=3,
    )


def _draw_node(
    axes: "Axes", place: tuple[float, float], text: str, ends: bool, style: dict[str, Any]
) -> None:
    """Draw a node's token in a box, which has another colour where a translation ends."""
    box = {"boxstyle": "round,pad=0.22", "edgecolor": "#888888", "linewidth": 0.6}
    box["facecolor"] = "#f4e3c8" if ends else "white"
    axes.text(*place, text, **style, ha="center", va="center", zorder=2, bbox=box)


def _places(tree: SupportTree, least: float) -> dict[int, tuple[float, float]]:
    """Return the depth and row of each shown node; a parent's row is centred on its children."""
    places: dict[int, tuple[float, float]] = {}
    rows = 0

    def place(node: SupportNode, depth: int) -> float:
        nonlocal rows
        below = [place(child, depth + 1) for child in node.children if child.total >= least]
        if below:
            row = (below[0] + below[-1]) / 2
        else:
            row, rows = rows, rows + 1
        places[id(node)] = (depth, row)
        return row

    place(tree.root, 0)
    return places
