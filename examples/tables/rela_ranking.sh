# The training corpus ranked by null rate, and a sheet for a judge with 200 pairs, 100 drawn from
# the 10,000 (or ENDS) pairs at each end.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, section 5.2 and Fig. 10: ranking of the training corpus"
ROWS=(rela_g)
COLUMNS=(bleu null)
NOTE="a judge fills in the sheet; fairseq-sparse sheets pairs score evaluates it. Fig. 10: \
fairseq-sparse draw attention --subset train --layer 3 --sentence N draws the heads for the pair with N in the column sentence"
FOLLOW_UP=(
  analyze nulls DATA --path MODELS --subset train --subwords subword_nmt --post-process
  --output STEM.tsv
  THEN sheets pairs draw STEM.tsv --ends "${ENDS:-10000}" --output STEM-sheet
)
