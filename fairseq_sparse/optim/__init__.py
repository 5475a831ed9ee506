"""Learning-rate schedules; importing a module registers its schedule with fairseq."""

import fairseq  # noqa: F401  # registers all of fairseq_sparse, in the right order
