"""A self-contained HTML page that compares trained models.

``report_runs`` reads the files of a recipe's run, ``measurements`` and ``sentences`` compute the
rest, ``figures`` draws, ``sections`` writes the HTML of the parts, and ``page`` puts them together
with ``page.html``, ``page.css`` and the scripts.
"""
