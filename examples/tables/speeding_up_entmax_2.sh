# How often the empty translation is more probable than what beam search finds, on the validation
# sets as in the paper; models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 2: empty translations"
ROWS=(softmax sparsemax entmax15 alpha_relu)
COLUMNS=(empty_is_best empty_is_impossible bleu)
ANALYSIS=empty
NOTE="p(empty) > p(best): sentences of the validation set whose empty translation is more probable \
than all that beam search finds, without normalisation by length; the paper does not state its \
beam, ours is 5"
