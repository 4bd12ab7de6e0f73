#!/bin/bash
# Guess: tekken.json lists the vocabulary: given its ranks, tiktoken returns the ids of mistral-common less the 1000
# special tokens.
# Version: mistral-common 1.13.1 (tekken_240911.json), tiktoken 0.14.0
# Behaviour: The file lists 150000 ranks; the model has 131072 - 1000. mistral-common drops the rest. With all of them
# tiktoken agrees on common words and then returns ids that the model's embedding has no row for.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  mistral-common==1.13.1 tiktoken==0.14.0
cat >"$folder/try.py" <<'PYTHON'
import base64
import json
import os
import mistral_common
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

path = os.path.join(os.path.dirname(mistral_common.__file__), "data", "tekken_240911.json")
with open(path, encoding="utf-8") as f:
    file = json.load(f)
config = file["config"]
special = config["default_num_special_tokens"]
model = config["default_vocab_size"] - special
print("ranks in the file", len(file["vocab"]), "ranks of the model", model)
reference = Tekkenizer.from_file(path)
word = base64.b64decode(file["vocab"][140000]["token_bytes"]).decode()
for name, limit in (("all ranks", len(file["vocab"])), ("cut", model)):
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in file["vocab"] if v["rank"] < limit}
    encoding = tiktoken.Encoding("t", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    for text in ("Hello world", word):
        ids = [i + special for i in encoding.encode(text)]
        same = ids == reference.encode(text, bos=False, eos=False)
        print(name, ascii(text), ids, "same as mistral-common" if same else "differs")
PYTHON
cat >"$folder/expected" <<'EXPECTED'
ranks in the file 150000 ranks of the model 130072
all ranks 'Hello world' [22177, 4304] same as mistral-common
all ranks '\u062d\u064a\u0645' [141000] differs
cut 'Hello world' [22177, 4304] same as mistral-common
cut '\u062d\u064a\u0645' [1708, 3955] same as mistral-common
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/tekken_ranks_beyond_vocabulary.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
