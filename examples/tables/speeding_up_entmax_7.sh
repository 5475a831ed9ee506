# Sentences that 1.5-ReLU translates better than 1.5-entmax, and the reverse; models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 7: two systems side by side"
DATASETS=(wmt13_en_ru)
ROWS=(entmax15 alpha_relu)
COLUMNS=(bleu)
SHOW="Table 7"
FOLLOW_UP=(compare SYSTEMS --source SOURCE --reference REFERENCE --json STEM.sentences.json)
