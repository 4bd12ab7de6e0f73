#!/bin/bash
# Guess: Of rows with equal scores, an exact search of faiss returns those with the lower numbers first, by either
# metric.
# Version: faiss-cpu 1.15.1, numpy 2.3.5
# Behaviour: By inner product it keeps and lists the highest numbers first, by L2 the lowest, for the same rows and
# the same exact ties. A top-k by one metric is no oracle for the other where scores repeat (pages of equal keys,
# quantised scores).
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  faiss-cpu==1.15.1 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import faiss
import numpy as np

rows = np.ones((300, 8), np.float32)
for index in (faiss.IndexFlatIP(8), faiss.IndexFlatL2(8)):
    index.add(rows)
    for k in (3, 120):
        found = index.search(rows[:1], k)[1][0]
        print(type(index).__name__, k, "of 300:", found[:3].tolist())
    index.reset()
    index.add(rows[:6])
    print(type(index).__name__, "3 of 6:", index.search(rows[:1], 3)[1][0].tolist())
PYTHON
cat >"$folder/expected" <<'EXPECTED'
IndexFlatIP 3 of 300: [2, 1, 0]
IndexFlatIP 120 of 300: [119, 118, 117]
IndexFlatIP 3 of 6: [2, 1, 0]
IndexFlatL2 3 of 300: [0, 1, 2]
IndexFlatL2 120 of 300: [0, 1, 2]
IndexFlatL2 3 of 6: [0, 1, 2]
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/faiss_ties.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
