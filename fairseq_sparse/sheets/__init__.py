"""Sheets on which people judge translations, and their scores."""
