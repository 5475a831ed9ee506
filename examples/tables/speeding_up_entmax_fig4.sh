# Decoding time of the test set by beam size, measured in turns; models of Table 5, 1.5-entmax by a
# full sort, as in the paper, and by our search. The picture has times divided by the smallest, as in
# the paper; the table has speeds as ratios to softmax.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Fig. 4: decoding by beam size"
DATASETS=(wmt13_en_ru)
ROWS=(softmax "entmax15 OUTPUT_ALGORITHM=sort" entmax15 alpha_relu)
COLUMNS=(bleu sentences_per_second)
FOLLOW_UP=(
  benchmark/decoding.py DATA --path MODELS --names NAMES --sentences 10000 --beams 1-10
  --batches 32 --plots STEM --json STEM.decoding.json
)
