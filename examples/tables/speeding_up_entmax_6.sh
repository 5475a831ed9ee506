# The examples are in the instructions of Table 4's sheets.
source "$EXAMPLES/tables/speeding_up_entmax_4.sh"
SHOW="Table 6"
