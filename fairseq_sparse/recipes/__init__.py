"""From an entry of the catalogue to a trained and scored model, by plain commands.

A recipe is walked in one direction: ``entries/*.yaml`` -> ``catalogue`` -> ``recipe`` (every
setting of a run) -> ``plan`` (stages of commands) -> ``engine`` (runs them) or ``script`` (prints
them). What the user must mend is a RecipeError, whose message says how.
"""
