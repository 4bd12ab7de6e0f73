#!/bin/bash
# Guess: faiss.Kmeans trains on the rows that it is given, and obj is the sum of their squared distances to the
# centroids.
# Version: faiss-cpu 1.15.1, numpy 2.3.5
# Behaviour: It draws 256 rows for each centroid and drops the rest: of 20000 rows and 4 centroids it sees 1024, and
# obj is of those. Nothing says so unless verbose is set; max_points_per_centroid undoes it.
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

rows = np.random.default_rng(0).standard_normal((20000, 8)).astype(np.float32)
for name, options in (("as it comes", {}), ("all rows", {"max_points_per_centroid": len(rows)})):
    kmeans = faiss.Kmeans(8, 4, niter=5, seed=1, **options)
    kmeans.train(rows)
    whole = kmeans.index.search(rows, 1)[0].sum()
    print(name, "- obj is of", round(float(kmeans.obj[-1] / whole) * 20000, -2), "rows of 20000, roughly")
PYTHON
cat >"$folder/expected" <<'EXPECTED'
as it comes - obj is of 1000.0 rows of 20000, roughly
all rows - obj is of 20000.0 rows of 20000, roughly
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/faiss_kmeans_sample.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
