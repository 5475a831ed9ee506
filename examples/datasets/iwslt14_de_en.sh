# IWSLT 2014, talks, German to English, for SUE: 160,000 training, 7,000 validation and 6,750 test
# pairs. Cettolo et al.: Report on the 11th IWSLT Evaluation Campaign (2014).
# Home: https://wit3.fbk.eu
#
#   setting                     value                         from
#   BPE                         10,000 merges, joint          paper
#   training pairs              160,000 (paper: 172,000)      not stated, ours: as in fairseq's
#                                                             prepare-iwslt14.sh, whose archive it is
#   sentences                   also titles and descriptions  not stated, ours: as there
#   left out of training        more than 175 tokens, or 1.5  not stated, ours: as there
#                               times as many as on the other
#                               side
#   validation                  every 23rd training pair      not stated, ours: as there
#   test                        dev2010, TEDX.dev2012,        not stated, ours: as there
#                               tst2010 to tst2012
#   case                        kept                          paper (cased BLEU)
#   tokenizer                   Moses, hyphens split          not stated, ours
#   precision on a GPU          fp16                          not stated, ours
#   sizes                       d 512, 6 layers, feed-forward paper
#                               1024
#
# Optimiser, learning rate, dropout, weight decay and batch are those of fairseq's
# examples/translation; one matrix for all embeddings, no label smoothing, 50 epochs and averaging
# five checkpoints are ours. --settings sue has the paper's values. The download is untested; users
# of the archive have published its checksum. Not run here. Sized by calculation for one GPU with
# 11 GB.

DATASET_NOTE="cased and detokenised: most published scores of this data set are of lower-cased tokens"
SOURCE_LANG=de
TARGET_LANG=en
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/iwslt14_de_en.archives}"
place="iwslt14.de-en.tgz!de-en"
CORPUS=("train talks $place/train.tags.de-en.de $place/train.tags.de-en.en")
for part in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
  CORPUS+=("test seg $place/IWSLT14.$part.de-en.de.xml $place/IWSLT14.$part.de-en.en.xml")
done
HOLD_OUT=23
TEXT_FLAGS=(--max-tokens 175 --max-ratio 1.5)

BPE_MERGES="${BPE_MERGES:-10000}"
BATCH_TOKENS="${BATCH_TOKENS:-4096}"
DEVICE_TOKENS="${DEVICE_TOKENS:-4096}"
DATASET_FLAGS=(
  --arch transformer_sparse_iwslt_de_en --share-all-embeddings
  --dropout 0.3 --weight-decay 1e-4
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0
  --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 4000
  --max-epoch "${MAX_EPOCH:-50}" --log-interval 100
  --seed "${SEED:-1}"
)
if [[ "$CONFIG" == gpu ]]; then DATASET_FLAGS+=(--fp16); fi
AVERAGE_LAST="${AVERAGE_LAST:-5}"
GENERATE=(--beam 5 --lenpen 1.0 --max-tokens 8000)
