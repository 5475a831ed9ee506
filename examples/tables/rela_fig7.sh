# Every head of a cross-attention layer in some sentences. The paper shows heads 0, 2, 3 and 7 of
# the third of six layers of its own model; in another training other heads play their roles.
# LAYER=3 draws that layer; without it, the last one is drawn, which every model has.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, Fig. 7 to 9: cross-attention in sentences"
ROWS=(rela_g)
COLUMNS=(bleu null)
FOLLOW_UP=()
for sentence in ${SENTENCES:-0 1 2}; do
  FOLLOW_UP+=(
    ${FOLLOW_UP[0]:+THEN} draw attention DATA --path MODELS --sentence "$sentence" --place cross
    ${LAYER:+--layer "$LAYER"} --output "STEM-sentence-$sentence.png"
  )
done
