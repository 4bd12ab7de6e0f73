#!/bin/bash
# Guess: np.mean of bfloat16 values adds in float32, as it does for float16: the mean of 1000 ones is 1.
# Version: ml_dtypes 0.6.0, numpy 2.3.5
# Behaviour: Sum and mean of bfloat16 are made in bfloat16, one after the other, and stop at 256: the mean of 1000
# ones is 0.256. np.dot of the same arrays is right. Statistics of bfloat16 checkpoints need astype(float32) first.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  ml_dtypes==0.6.0 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import ml_dtypes
import numpy as np

for kind in (np.float16, ml_dtypes.bfloat16):
    ones = np.ones(1000, kind)
    print(np.dtype(kind).name, "sum", float(ones.sum()), "mean", float(ones.mean()), "dot", float(np.dot(ones, ones)),
          "mean in float32", float(ones.mean(dtype=np.float32)))
PYTHON
cat >"$folder/expected" <<'EXPECTED'
float16 sum 1000.0 mean 1.0 dot 1000.0 mean in float32 1.0
bfloat16 sum 256.0 mean 0.255859375 dot 1000.0 mean in float32 1.0
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/bf16_mean.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
