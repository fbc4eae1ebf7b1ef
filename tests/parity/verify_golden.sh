#!/usr/bin/env bash
# `longshore check model` of every golden model beside transformers: verify_golden.sh LONGSHORE PYTHON.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for model in "$here"/golden/*; do
  copy="$work/$(basename "$model")"
  "$2" -B "$here/weights.py" "$model" "$copy"
  "$1" check model "$copy" --python "$2" --tokens 48
done
