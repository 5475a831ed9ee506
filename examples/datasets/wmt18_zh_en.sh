# WMT 2018, news, Chinese to English, as in ReLA: 25 million training pairs in the paper.
# Needs jieba to segment Chinese into words (pip install jieba).
# Bojar et al.: Findings of the 2018 Conference on Machine Translation.
# Home: https://www.statmt.org/wmt18/translation-task.html
#
# Train: News Commentary v13, the United Nations' corpus 1.0 and CWMT's, without pairs with more than
# 250 tokens on a side (not stated, ours). Validation: newstest2017 (paper: the year before). Test:
# newstest2018 (paper). Each language has 32,000 merges of its own, and jieba segments Chinese (not
# stated, ours). shared/rela.sh has the rest. Train with --settings rela. Not run here.
# The home of CWMT's corpus (http://nlp.nju.edu.cn/cwmt-wmt/) requires registration and offers other
# files; address, name and layout here are those of Tensor2Tensor's translate_enzh.py. If that
# archive is gone, set CHECKSUMS to a list with your own address for it, or set RAW_DIR.

SOURCE_LANG=zh
TARGET_LANG=en
source "$EXAMPLES/datasets/shared/wmt.sh"
for place in \
  "training-parallel-nc-v13.tgz!training-parallel-nc-v13/news-commentary-v13.zh-en" \
  "UNv1.0.en-zh.tar.gz!en-zh/UNv1.0.en-zh"; do
  add_corpus train text "$place" "$place"
done
for name in casia2015/casia2015:ch casict2015/casict2015:ch datum2015/datum:ch neu2017/NEU:cn; do
  place="cwmt.tgz!cwmt/${name%:*}"
  CORPUS+=("train text ${place}_${name#*:}.txt ${place}_en.txt")
done
for (( book = 1; book <= 20; book++ )); do
  place="cwmt.tgz!cwmt/datum2017/Book$book"
  CORPUS+=("train text ${place}_cn.txt ${place}_en.txt")
done
for year in valid:2017 test:2018; do
  place="wmt${year#*:20}-test.tgz!test/newstest${year#*:}-zhen"
  add_corpus "${year%:*}" seg "$place-src" "$place-ref" .sgm
done
TEXT_FLAGS=(--jieba zh --separate-bpe --max-tokens 250)
source "$EXAMPLES/datasets/shared/rela.sh"
source "$EXAMPLES/datasets/shared/transformer_base.sh"
