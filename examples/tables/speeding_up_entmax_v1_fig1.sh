# Validation BLEU on WMT'14 En-De by updates (Fig. 1) and by hours (Fig. 2).
source "$EXAMPLES/tables/speeding_up_entmax_fig2.sh"
TITLE="Speeding Up Entmax, first version, Fig. 1 and 2: training by updates and by hours"
DATASETS=(wmt14_en_de)
ROWS=(softmax "sparsemax OUTPUT_ALGORITHM=sort" "entmax15 OUTPUT_ALGORITHM=sort" alpha_relu entmax15)
