# Fig. 5 on the first 10,000 sentences of the training set of IWSLT'14.
source "$EXAMPLES/tables/speeding_up_entmax_fig5.sh"
TITLE="Speeding Up Entmax, Fig. 6: zeros on the training set"
DATASETS=(iwslt14_de_en)
FOLLOW_UP+=(--subset train --sentences 10000)
