# Sheets for two annotators, with the reference among the candidates, and their instructions, with
# ten examples of our own (Table 6 has the paper's); models of Table 1.
source "$EXAMPLES/tables/speeding_up_entmax_1.sh"
TITLE="Speeding Up Entmax, Table 4 and 6: human evaluation"
DATASETS=(wmt13_en_ru)
ROWS=(softmax entmax15 alpha_relu)
COLUMNS=(bleu)
NOTE="people must judge: fairseq-sparse sheets score reads the sheets that they fill in"
FOLLOW_UP=(sheets make SYSTEMS --source SOURCE --reference REFERENCE --output STEM-sheets)
SHOW="Table 4"
