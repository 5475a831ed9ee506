# Validation BLEU during training, by updates (Fig. 2) and by hours (Fig. 3); runs of Table 1, trained
# with --eval-bleu. 1.5-entmax by a full sort, by k = 100 and by our search. For Fig. 2 the paper's text names WMT'14 En-De, but also mentions En-Ru.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Fig. 2 and 3: training by updates and by hours"
DATASETS=(wmt14_en_de wmt13_en_ru)
ROWS=(softmax "entmax15 OUTPUT_ALGORITHM=sort" entmax15_k100 alpha_relu entmax15)
COLUMNS=(bleu updates hours)
DRAW=(training)
