"""Checks lines [schema, document], both as text, by the package jsonschema; numbers are compared exactly."""

import decimal
import json
import sys

import jsonschema


def number(text):
    exact = decimal.Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else exact


def members(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError(f"a member twice: {names}")
    return dict(pairs)


def read(text):
    return json.loads(text, parse_float=number, object_pairs_hook=members)


decimal.getcontext().prec = 1000
bad = 0
count = 0
for line in open(sys.argv[1], encoding="utf-8"):
    schema, document = json.loads(line)
    count += 1
    try:
        read_schema = read(schema)
        jsonschema.Draft202012Validator(read_schema).validate(read(document))
    except Exception as e:
        bad += 1
        if bad <= 5:
            print(f"{type(e).__name__}: {str(e)[:300]}\n  schema {schema}\n  document {document}")
print(f"{count} documents, {bad} not valid")
sys.exit(bad > 0 or count == 0)
