#!/bin/bash
# Guess: save_file() of safetensors.numpy writes the values of an array whatever its strides are, as ndarray.tobytes()
# does; an array that is not C-contiguous is copied first.
# Version: safetensors 0.8.0, numpy 2.3.5
# Behaviour: It writes the memory behind the array in the order it lies there, under the array's shape: a transposed
# matrix and a slice with a step come back with other values, without an error or a warning. np.ascontiguousarray()
# first mends it.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  safetensors==0.8.0 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import sys
import numpy as np
from safetensors.numpy import load_file, save_file

path = sys.argv[1] + "/x.safetensors"
stored = np.arange(6, dtype=np.float32).reshape(3, 2)
wide = np.arange(8, dtype=np.float32).reshape(2, 4)
for name, array in (("transposed", stored.T), ("every second column", wide[:, ::2]),
                    ("copied first", np.ascontiguousarray(stored.T))):
    save_file({"w": array}, path)
    print(name, array.tolist(), "->", load_file(path)["w"].tolist())
PYTHON
cat >"$folder/expected" <<'EXPECTED'
transposed [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]] -> [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
every second column [[0.0, 2.0], [4.0, 6.0]] -> [[0.0, 1.0], [2.0, 3.0]]
copied first [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]] -> [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/safetensors_numpy_order.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
