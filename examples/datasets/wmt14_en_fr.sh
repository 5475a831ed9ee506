# WMT 2014, English to French, as in ReLA: 36 million training pairs, those of shared/wmt14.sh with
# the United Nations' and Giga-FrEn's, after cleaning. Validation: newstest2012 and newstest2013
# (which ReLA took is not verified).
# ReLA's BLEU: softmax 37.2, sparsemax attention 37.3, 1.5-entmax attention 37.9, ReLA 37.9. Not run
# here.

TARGET_LANG=fr
VALID_YEARS="2012 2013"
place="training-parallel-un.tgz!un/undoc.2000.fr-en"
CORPUS=("train text $place.en $place.fr")
place="training-giga-fren.tar!giga-fren.release2.fixed"
CORPUS+=("train text $place.en.gz $place.fr.gz")
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/wmt14.sh"
