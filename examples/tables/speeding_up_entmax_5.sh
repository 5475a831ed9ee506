# Time and energy of training; the models of Table 1. Times come from the logs: run nothing else on
# the machine (--jobs 1 on a CPU).
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 5: time and energy of training"
COLUMNS=(hours watt_hours words_per_second updates bleu)
