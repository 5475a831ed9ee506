# Morphological inflection by the alphas of output and attention, and the ensembles of the seeds.
# sweep.sh trains the models. The paper's figures are means over all languages.
TITLE="Sparse Sequence-to-Sequence Models, Table 1: morphological inflection"
DATASETS=(sigmorphon2018_high sigmorphon2018_medium)
SWEEP_ALPHAS="1 1.5 2"
ROWS=()
for output in $SWEEP_ALPHAS; do
  for attention in $SWEEP_ALPHAS; do
    ROWS+=("entmax OUTPUT_ALPHA=$output ATTENTION_ALPHA=$attention")
  done
done
COLUMNS=(word_accuracy edit_distance nonzeros hours watt_hours)
