# The output's share of zeros (Fig. 5) and its sum (Fig. 9) at the steps of beam search on the test
# sets; models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Fig. 5 and 9: zeros and sums of p at the steps of decoding"
ROWS=(entmax15 alpha_relu)
COLUMNS=(nonzeros prob_sum bleu)
FOLLOW_UP=(
  analyze output support DATA --path MODELS --names NAMES --steps decoding --no-search
  --plots STEM --json STEM.support.json
)
