#!/usr/bin/env bash
# Run on each node: torchrun.sh FIRST_NODE_ADDRESS RUN_FILE [overrides...]. torchrun restarts all
# ranks up to three times when one fails; they resume from the last checkpoint.
set -euo pipefail
address=$1
shift
exec torchrun --no-python --nnodes=2 --nproc-per-node=2 --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-endpoint="$address:29500" --rdzv-id=two_nodes \
  longshore train "$@" --fsdp.strategy=hybrid_shard
