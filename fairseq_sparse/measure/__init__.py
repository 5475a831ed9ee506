"""Measurements of models and of their translations; the only room that loads models.

A measurement is a dictionary for JSON. ``cache`` keeps it in the folder of the run, with the model,
the data and the version that it was made from, so that it is made once. ``output`` measures the
distributions of the next token, ``attention`` the weights, ``alignment`` the links between words,
``text`` translations alone.
"""
