"""From an entry of the catalogue to a trained and scored model, by plain commands.

A recipe is walked in one direction:

- ``entries/*.yaml`` -> ``catalogue``, ``data``, ``models``, ``resolve`` -> ``recipe``: every
  setting of a run;
- ``preparation``, ``training``, ``evaluation`` -> ``stages``: its ``plan``, stages of commands;
- ``engine`` runs a plan, and ``grid`` several: ``records`` say what is done, ``supervisor`` and
  ``processes`` do the work, ``progress`` shows it; or ``script`` prints the plan.

``tables`` and ``reproduce`` plan the runs behind a table of a paper, ``ensemble`` decodes with
several runs, ``launch`` trains on several devices. What the user must mend is a RecipeError, whose
message says how.
"""
