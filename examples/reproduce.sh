#!/usr/bin/env bash
# fairseq-sparse reproduce; --help lists its options.
source "$(dirname -- "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m fairseq_sparse reproduce "$@"
