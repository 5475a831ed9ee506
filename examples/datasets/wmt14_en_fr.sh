# WMT 2014, English to French, as in ReLA: 36 million training pairs (paper), from the corpora of
# shared/wmt14.sh, the United Nations corpus and Giga-FrEn (not stated, ours).
# Validation: newstest2013, the test set of the year before (paper). shared/rela.sh has the
# rest. Train with --settings rela. Not run here.

TARGET_LANG=fr
VALID_YEARS=2013
place="training-parallel-un.tgz!un/undoc.2000.fr-en"
CORPUS=("train text $place.en $place.fr")
place="training-giga-fren.tar!giga-fren.release2.fixed"
CORPUS+=("train text $place.en.gz $place.fr.gz")
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/wmt14.sh"
