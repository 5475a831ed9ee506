"""Errors whose message is for the user; they are here because loading them takes no time."""


class AnalysisError(Exception):
    """An analysis cannot be made; the message says why."""


class CheckpointError(Exception):
    """A checkpoint cannot be read, or cannot be used for what was asked."""
