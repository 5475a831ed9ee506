# BLEU by the threshold of 1.5-ReLU. The paper's values could not be read off its plot; these are
# around what the three estimators find for the recipes' models.
TITLE="Speeding Up Entmax, Fig. 8: the threshold of 1.5-ReLU"
DATASETS=(iwslt14_de_en)
ROWS=(alpha_relu)
for tau in weights formula 0 0.33 0.7 1 1.5 2 3; do ROWS+=("alpha_relu OUTPUT_TAU=$tau"); done
COLUMNS=(bleu tau nonzeros prob_sum gold_zero hours watt_hours)
NOTE="alpha_relu without a value has its threshold from the first batch (data)"
CURVE=tau
