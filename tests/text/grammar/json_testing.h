// Schemas for the tests, documents that satisfy them, and a validator independent of the matcher.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace mneme::test {

using OrderedJson = nlohmann::ordered_json;

const std::vector<std::string>& schemas();

// Follows the definitions of JSON Schema keyword by keyword.
bool is_valid(const OrderedJson& value, const OrderedJson& schema, const OrderedJson& root);

// A random document that satisfies the schema; members in random order.
OrderedJson random_document(const OrderedJson& schema, const OrderedJson& root, std::mt19937& random, int depth = 0);

}  // namespace mneme::test
