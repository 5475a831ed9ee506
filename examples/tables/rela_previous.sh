# The null rate of each cross-attention head after the ten most frequent target words, or after the
# tags in the file TAGS, which has a line per sentence of the test set (section 5.2: heads that
# attend to almost nothing, except after a comma, or after a verb or an auxiliary).
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, section 5.2: null rate by the word before"
ROWS=(rela_g)
COLUMNS=(bleu null)
FOLLOW_UP=(
  analyze attention DATA --path MODELS --names NAMES --subwords subword_nmt --by-previous 10
  ${TAGS:+--tags "$TAGS"} --json STEM.previous.json
)
