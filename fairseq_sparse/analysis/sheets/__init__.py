"""Sheets on which people judge translations, and what comes of them."""
