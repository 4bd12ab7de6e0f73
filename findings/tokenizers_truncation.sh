#!/bin/bash
# Guess: Truncation in tokenizer.json is a training setting: both libraries that read the file treat it alike, and a
# prompt is never cut unless the caller asks.
# Version: tokenizers 0.23.3, transformers 5.24.0
# Behaviour: tokenizers cuts every encode() to the file's max_length without a word; transformers, on the same file,
# returns all ids. A prompt counted or hashed with one library is another prompt with the other.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  tokenizers==0.23.3 transformers==5.24.0
cat >"$folder/try.py" <<'PYTHON'
import json
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

folder = sys.argv[1]
alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.enable_truncation(max_length=4)
tokenizer.save(folder + "/tokenizer.json")
with open(folder + "/tokenizer_config.json", "w") as f:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, f)
text = "ten bytes."
print("tokenizers  ", len(Tokenizer.from_file(folder + "/tokenizer.json").encode(text).ids))
print("transformers", len(AutoTokenizer.from_pretrained(folder)(text).input_ids))
PYTHON
cat >"$folder/expected" <<'EXPECTED'
tokenizers   4
transformers 10
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/tokenizers_truncation.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
