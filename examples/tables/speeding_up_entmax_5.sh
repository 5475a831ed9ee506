# Time and energy of training: the models of Table 1, whose thresholds the paper finds by a full sort
# (taken for sparsemax, too), and by our search. Times come from the logs: run nothing else on the
# machine (--jobs 1 on a CPU).
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 5: time and energy of training"
ROWS=(
  softmax "sparsemax OUTPUT_ALGORITHM=sort" "entmax15 OUTPUT_ALGORITHM=sort" entmax15_k100 alpha_relu
  sparsemax entmax15
)
COLUMNS=(hours watt_hours words_per_second updates bleu)
