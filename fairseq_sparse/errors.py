"""Errors whose messages are for the user, in a module of their own that loads quickly."""


class AnalysisError(Exception):
    """An analysis cannot be made; the message says why."""


class CheckpointError(Exception):
    """A checkpoint cannot be read, or is unsuitable; the message says why."""


class RecipeError(Exception):
    """Error in a recipe or its run; the message says what was wrong, where, and what to do."""
