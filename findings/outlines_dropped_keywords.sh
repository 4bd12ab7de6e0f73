#!/bin/bash
# Guess: A keyword that outlines-core cannot express is an error, as it is for not and if; text that its regex accepts
# is valid under the schema.
# Version: outlines-core 0.2.14, jsonschema 4.26.0, llguidance 1.9.1
# Behaviour: Beside type it drops minimum, multipleOf, uniqueItems, contains, dependentRequired and a required name
# that has no property, without a word; oneOf becomes anyOf. llguidance enforces or refuses each. A pattern is taken
# as anchored.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  outlines-core==0.2.14 jsonschema==4.26.0 llguidance==1.9.1
cat >"$folder/try.py" <<'PYTHON'
import json
import re
import jsonschema
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema

tokenizer = LLTokenizer("byte")
integer = {"type": "integer"}


def guided(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    if matcher.is_error():
        return "refused"
    ids = tokenizer.tokenize_str(text)
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


for schema, text in (({**integer, "minimum": 5}, "3"), ({**integer, "multipleOf": 3}, "4"),
                     ({"type": "array", "items": integer, "uniqueItems": True}, "[1, 1]"),
                     ({"type": "array", "contains": integer}, '["a"]'),
                     ({"type": "object", "properties": {"a": integer}, "required": ["z"]}, '{"a": 1}'),
                     ({"type": "object", "properties": {"a": integer}, "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
                     ({"oneOf": [integer, {"type": "number"}]}, "1"), ({"type": "string", "pattern": "b"}, '"abc"')):
    regex = re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    said = f"outlines {regex} llguidance {guided(schema, text)}"
    print(list(schema)[-1], text, "valid" if valid else "invalid", said)
PYTHON
cat >"$folder/expected" <<'EXPECTED'
minimum 3 invalid outlines True llguidance False
multipleOf 4 invalid outlines True llguidance False
uniqueItems [1, 1] invalid outlines True llguidance refused
contains ["a"] invalid outlines True llguidance refused
required {"a": 1} invalid outlines True llguidance False
dependentRequired {"a": 1} invalid outlines True llguidance refused
oneOf 1 invalid outlines True llguidance refused
pattern "abc" valid outlines False llguidance True
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/outlines_dropped_keywords.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
