# The threshold and the norm of the logits during training; models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Fig. 7: threshold and norm of the logits during training"
DATASETS=(iwslt14_de_en)
ROWS=(entmax15 alpha_relu)
COLUMNS=(bleu tau updates)
FOLLOW_UP=(
  analyze output support DATA --path MODELS --names NAMES --log LOGS --no-search
  --plots STEM --json STEM.support.json
)
