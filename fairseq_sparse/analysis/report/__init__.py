"""One HTML page that compares trained models and needs nothing but itself.

``report_runs`` finds what a recipe's run has, ``measurements`` and ``sentences`` what must be
computed, ``published`` has the papers' figures, ``figures`` draws, ``sections`` writes the HTML of
the parts, and ``page`` puts them together with ``page.html``, ``page.css`` and the scripts.
"""
