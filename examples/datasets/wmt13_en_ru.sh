# WMT 2013, news, English to Russian, as in SUE: 1.3 million training pairs in the paper. The
# number here has not been counted.
# Bojar et al.: Findings of the 2013 Workshop on Statistical Machine Translation.
# Home: https://www.statmt.org/wmt13/translation-task.html
#
#   setting                value                              from
#   corpora                Common Crawl, News Commentary v8,  paper: without Yandex's corpus. The
#                          WMT's wiki headlines               others are not stated; 1.3 million
#                                                             pairs need the headlines
#   left out of training   more than 250 tokens, or 1.5 times not stated, ours
#                          as many as on the other side
#   validation, test       newstest2012, newstest2013         not stated, ours: the sets of the year
#                                                             before and of the year
#   BPE                    60,000 merges, joint               paper
#   tokenizer              Moses, hyphens split, case kept    not stated, ours
#   model                  d 512, 8 heads, 6 layers, feed-    paper
#                          forward 2048
#
# Train with --settings sue. The headlines are those that WMT released in 2014 and 2015 in one
# archive. No checksum of that archive has been published: damage is detected, but another archive
# under its name is not. The sha256 of the fetched file goes into prepared/settings, so that
# machines can be compared.
# Not run here.

SOURCE_LANG=en
TARGET_LANG=ru
source "$EXAMPLES/datasets/shared/wmt.sh"
for place in \
  "training-parallel-commoncrawl.tgz!commoncrawl.ru-en" \
  "training-parallel-nc-v8.tgz!training/news-commentary-v8.ru-en"; do
  add_corpus train text "$place" "$place"
done
place="wmt15-wiki-titles.tgz!wiki/ru-en/wiki.ru-en"
CORPUS+=("train bars $place#2 $place#1")
place="wmt19-dev.tgz!dev/newstest2012"
add_corpus valid text "$place" "$place"
place="wmt13-test.tgz!test/newstest2013-src"
add_corpus test seg "$place" "$place" .sgm
TEXT_FLAGS=(--max-tokens 250 --max-ratio 1.5)
BPE_MERGES="${BPE_MERGES:-60000}"
source "$EXAMPLES/datasets/shared/transformer_base.sh"
