# The paper's grid of thresholds for 1.5-ReLU. Draws the first quarter of the training, because
# the range of the paper's plot is not legible, and, beyond the paper, the final BLEU by threshold.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Fig. 8: the threshold of 1.5-ReLU"
DATASETS=(iwslt14_de_en)
ROWS=(alpha_relu)
for tau in 0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1 2 5 10; do
  ROWS+=("alpha_relu OUTPUT_TAU=$tau")
done
COLUMNS=(bleu tau nonzeros prob_sum gold_zero hours watt_hours)
NOTE="alpha_relu without a value estimates its threshold: from the first batch (data) with the settings sue, from the output weights otherwise"
DRAW=(training tau)
EARLY=0.25
