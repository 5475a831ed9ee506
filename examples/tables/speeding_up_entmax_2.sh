# How often the empty translation is more probable than what beam search finds; models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 2: empty translations"
COLUMNS=(empty_is_best empty_is_impossible empty bleu)
ANALYSIS=empty
NOTE="p(empty) > p(best): sentences whose empty translation is more probable than the best that \
beam search (beam 5) finds, without normalisation by length; empty: translations that are empty"
