# The training corpus ranked by its null rate, and 100 pairs of the 10,000 at either end, or as many as
# ENDS says, for a judge.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, section 5.2 and Fig. 10: ranking of the training corpus"
ROWS=(rela_g)
COLUMNS=(bleu null)
NOTE="a judge fills in the sheet; scripts/sample_ranked_pairs.py score counts. Fig. 10: \
scripts/draw_attention.py --subset train --sentence N draws the heads for the pair with N in the column sentence"
LOOK=(
  rank_by_null_attention.py DATA --path MODELS --subset train --subwords subword_nmt --post-process
  --output STEM.tsv
  THEN sample_ranked_pairs.py draw STEM.tsv --ends "${ENDS:-10000}" --output STEM-sheet
)
