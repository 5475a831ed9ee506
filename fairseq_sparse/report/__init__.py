"""A self-contained HTML page that compares trained models; it reads measurements, and makes none.

``sections`` arranges them as tables, notes and figures, ``figures`` draws, and ``page`` fills the
template ``page.html`` with them, ``page.css`` and the script ``page.js``.
"""
