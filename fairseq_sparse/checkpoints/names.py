"""Names of the checkpoints that fairseq-train writes; in patterns, the number that counts is a
group."""

LAST = "checkpoint_last.pt"
EPOCH = r"checkpoint(\d+)\.pt"
UPDATE = r"checkpoint_\d+_(\d+)\.pt"
