#include "tests/golden/golden_case.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace mneme {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::vector<float> GoldenCase::logits(const std::string& file) const {
  const std::string bytes = read_file(folder / file);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

GoldenCase read_golden(const std::string& name) {
  GoldenCase c;
  c.folder = std::filesystem::path(MNEME_SOURCE_DIR) / "tests/golden/data" / name;
  const nlohmann::json json = nlohmann::json::parse(read_file(c.folder / "golden.json"));
  json.at("tokens").get_to(c.tokens);
  json.at("rows").get_to(c.rows);
  json.at("n_decode").get_to(c.n_decode);
  json.at("context").get_to(c.context);
  for (const auto& [kv, level] : json.at("plain").items()) c.plain[kv] = {level.at("max"), level.at("rms")};
  if (json.contains("rounded"))
    for (const auto& [kv, level] : json.at("rounded").items()) c.rounded[kv] = {level.at("max"), level.at("rms")};
  for (const auto& [kv, level] : json.at("sharp").items()) c.sharp[kv] = {level.at("max"), level.at("rms")};
  return c;
}

}  // namespace mneme
