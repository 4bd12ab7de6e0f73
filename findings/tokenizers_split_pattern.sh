#!/bin/bash
# Guess: A pattern of a pre-tokenizer means in tokenizer.json what it means to tiktoken and to the regex package:
# {1,3}+ is possessive, $ is the end of the text, \h is horizontal white space.
# Version: tokenizers 0.23.3, tiktoken 0.14.0, regex 2026.11.19
# Behaviour: tokenizers reads Ruby's syntax: {1,3}+ repeats the group, so digits are not cut by threes, $ also stands
# before a line break, \h is a hexadecimal digit. A pattern with {1,3}+ as tiktoken users write it gives other ids,
# silently.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  tokenizers==0.23.3 tiktoken==0.14.0 regex==2026.11.19
cat >"$folder/try.py" <<'PYTHON'
import regex
import tiktoken
from tokenizers import Regex, pre_tokenizers

digits = r"\p{N}{1,3}+|\P{N}+"
ranks = {bytes([i]): i for i in range(256)} | {b"12": 256, b"123": 257, b"1234": 258}
print("tiktoken  ", tiktoken.Encoding("t", pat_str=digits, mergeable_ranks=ranks, special_tokens={}).encode("1234"))
for pattern, text in ((digits, "1234"), (r"\s+$|\S+|\s", "a  \nb"), (r"\h+|[^\h]+", "cab le")):
    cut = [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]
    print("tokenizers", pattern, cut)
    if "h" not in pattern:
        print("regex     ", pattern, [m.group() for m in regex.finditer(pattern, text)])
PYTHON
cat >"$folder/expected" <<'EXPECTED'
tiktoken   [257, 52]
tokenizers \p{N}{1,3}+|\P{N}+ ['1234']
regex      \p{N}{1,3}+|\P{N}+ ['123', '4']
tokenizers \s+$|\S+|\s ['a', '  ', '\n', 'b']
regex      \s+$|\S+|\s ['a', ' ', ' ', '\n', 'b']
tokenizers \h+|[^\h]+ ['cab', ' l', 'e']
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/tokenizers_split_pattern.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
