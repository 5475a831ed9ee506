# ReLA's training and decoding, for a Transformer of any size.
#
#   setting                     value                        from
#   place of the layer norms    after each part              authors' repository
#   dropout                     0.1 on residual connections  paper
#                               and on attention weights
#   dropout of embeddings and   0.1                          authors' repository
#     in the feed-forward part
#   gate of ReLA-g, at first    Xavier-uniform, as a vector  authors' repository
#   leaky ReLU's slope, GeLU    0.2, exact                   not stated, ours
#   epsilon of RMSNorm          1e-8                         authors' repository
#   label smoothing             0.1                          paper
#   Adam's betas                0.9, 0.98                    paper
#   Adam's epsilon              1e-8                         authors' repository
#   schedule                    of Vaswani et al. 2017       paper; a peak of 512^-0.5 * 4000^-0.5
#   warm-up steps               4,000                        paper
#   weight decay, clipping      none                         authors' repository
#   loss of a batch             mean over its tokens         not stated, ours; the repository takes
#                                                            the mean of each sentence's mean
#   averaging                   last 5 checkpoints           paper
#   beam, length penalty        4, 0.6                       paper; fairseq divides by length^0.6
#
# The authors' repository is github.com/bzhangGo/zero; the values are those of its command and its
# defaults for this model. The paper's data sets (datasets/shared/rela.sh) set the batch size, the
# length of training and the checkpoint interval. Trainings of a CPU configuration end before the
# warm-up does.
drop_flags --encoder-normalize-before --decoder-normalize-before
DATASET_FLAGS+=(
  --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1
  --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --weight-decay 0 --clip-norm 0
  --lr-scheduler inverse_sqrt --warmup-init-lr 1.747e-7 --warmup-updates 4000 --lr 6.9877e-4
)
LABEL_SMOOTHING=0.1
GENERATE=(--beam 4 --lenpen 0.6 --max-tokens 8000)
AVERAGE_LAST=5
