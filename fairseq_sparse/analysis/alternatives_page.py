"""The alternatives of each step as one HTML page that needs nothing else."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fairseq_sparse.analysis.alternatives import (
    heading,
    left_out_text,
    number_text,
    remark,
    summary,
)

# Colours are paired with words, so that nothing depends on telling them apart.
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1b1b; --soft: #595959; --card: #f4f4f4;
  --line: #767676; --bar: #4d94d0; --given: #005a9c; --zero: #a83200; }
@media (prefers-color-scheme: dark) { :root { --page: #161616; --text: #ededed; --soft: #b0b0b0;
  --card: #242424; --line: #8c8c8c; --bar: #3f7fb5; --given: #7cc0ff; --zero: #ff9b6a; } }
body { margin: 1.5rem; background: var(--page); color: var(--text);
  font: 1rem/1.4 system-ui, sans-serif; }
h1 { font-size: 1.3rem; }
h2 { margin: 2rem 0 .3rem; font-size: 1rem; }
h1, h2, dd { overflow-wrap: anywhere; }
p, dl { margin: .2rem 0; max-width: 70rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; }
dt { color: var(--soft); }
dd { margin: 0; }
ol, ul { margin: 0; padding: 0; list-style: none; }
.steps { display: flex; gap: .6rem; margin-top: .6rem; padding: .3rem; overflow-x: auto; }
.step { flex: 0 0 auto; min-width: 9rem; padding: .5rem; border-radius: .4rem;
  background: var(--card); }
.steps:focus-visible, .step:focus-visible { outline: 3px solid var(--given); outline-offset: 1px; }
.step h3 { margin: 0; font-size: .95rem; }
.step p { margin: 0 0 .4rem; color: var(--soft); font-size: .8rem; }
.step li { margin-top: .2rem; padding: .1rem .4rem; border: 2px solid transparent;
  border-radius: .3rem; white-space: nowrap; }
.bar { display: block; height: .25rem; background: var(--bar); }
.step li.given { border-color: var(--given); }
.step li.impossible { border: 2px dashed var(--zero); }
.p { float: right; margin-left: 1rem; font-variant-numeric: tabular-nums; }
.note { display: block; font-size: .75rem; color: var(--given); }
.impossible .note { color: var(--zero); }
.step .more { margin: .3rem 0 0; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Alternatives at each step</title>
<style>{style}</style>
</head>
<body>
<h1>Alternatives at each step</h1>
<p>A column is a step: the tokens that the model holds for possible, given the ones before it in the
target. The token that is given has a frame; a dashed frame says that the model holds it for
impossible. A bar's full width stands for 1 or more.</p>
{sentences}
</body>
</html>
"""


def as_page(sentences: Sequence[dict[str, Any]]) -> str:
    """Sentences of :func:`find_alternatives` as a page; all text in it is escaped."""
    parts = [_sentence(number, sentence) for number, sentence in enumerate(sentences, start=1)]
    return _PAGE.format(style=_STYLE, sentences="\n".join(parts))


def _sentence(number: int, sentence: dict[str, Any]) -> str:
    steps = enumerate(sentence["steps"], start=1)
    columns = "\n".join(_step(position, step) for position, step in steps)
    return f"""<section aria-labelledby="sentence-{number}">
<h2 id="sentence-{number}">{escape(heading(sentence))}</h2>
<dl><dt>source</dt><dd dir="auto">{escape(sentence["source"])}</dd>
<dt>target</dt><dd dir="auto">{escape(sentence["target"])}</dd></dl>
<ol class="steps" tabindex="0" aria-label="steps, scrolls sideways">
{columns}
</ol>
</section>"""


def _step(position: int, step: dict[str, Any]) -> str:
    entries = enumerate(step["alternatives"], start=1)
    items = "\n".join(_alternative(number, entry) for number, entry in entries)
    more = f'\n<p class="more">{escape(left_out_text(step))}</p>' if step["left_out"] else ""
    token = escape(step["token"])
    return f"""<li class="step" tabindex="0" aria-label="step {position}: {token}">
<h3>{position} <bdi>{token}</bdi></h3>
<p>{escape(summary(step))}</p>
<ul>
{items}
</ul>{more}
</li>"""


def _alternative(position: int, entry: dict[str, Any]) -> str:
    note = remark(entry, position)
    kind = "impossible" if entry["rank"] is None else "given" if note else ""
    attributes = f' class="{kind}"' if kind else ""
    width = f"{100 * min(1.0, entry['p']):.1f}%"
    note = f'<span class="note">{escape(note)}</span>' if note else ""
    return (
        f'<li{attributes}><span class="p">{number_text(entry["p"])}</span>'
        f"<bdi>{escape(entry['token'])}</bdi>"
        f'<span class="bar" style="width: {width}"></span>{note}</li>'
    )
