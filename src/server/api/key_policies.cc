#include "src/server/api/key_policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "src/base/size32.h"
#include "src/formats/json.h"

namespace mneme::server {
namespace {

constexpr std::size_t kMaxBytes = 16 << 20;
constexpr std::int64_t kMaxPriority = 1000000, kMaxAnswers = 1 << 20;

void expect_names(const JsonRef& object, const auto& names) {
  if (!object.is_object()) object.wrong("an object");
  for (const auto& [name, value] : object.value().items())
    if (std::find(names.begin(), names.end(), name) == names.end())
      object.wrong(fmt::format("{}, not \"{}\"", fmt::join(names, ", "), name.substr(0, 60)));
}

std::int32_t number(const JsonRef& key, std::string_view name, std::int64_t low, std::int64_t high) {
  const std::int64_t v = key.integer(name, 0);
  if (v < low || v > high) key.wrong(fmt::format("{} from {} to {}, not {}", name, low, high, v));
  return count32(v);
}

}  // namespace

std::vector<KeyPolicy> parse_key_policies(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file, kMaxBytes);
  const JsonRef all(json, file);
  expect_names(all, std::array<std::string_view, 1>{"keys"});
  const JsonRef list = all.at("keys");
  if (!list.is_array() || list.value().empty()) list.wrong("an array of at least one key");
  std::vector<KeyPolicy> policies;
  std::set<std::string> keys, names;
  for (const JsonRef& k : list.elements()) {
    expect_names(k, std::array<std::string_view, 5>{"key", "name", "priority", "max_running", "max_in_flight"});
    KeyPolicy policy{.key = k.at("key").string(),
                     .name = k.at("name").string(),
                     .priority = number(k, "priority", -kMaxPriority, kMaxPriority),
                     .max_running = number(k, "max_running", 0, kMaxAnswers),
                     .max_in_flight = number(k, "max_in_flight", 0, kMaxAnswers)};
    if (policy.key.empty() || policy.name.empty()) k.wrong("a key and a name that are not empty");
    if (!names.insert(policy.name).second) k.wrong(fmt::format("names that differ, not \"{}\" twice", policy.name));
    if (!keys.insert(policy.key).second) k.wrong(fmt::format("another key than before, at \"{}\"", policy.name));
    policies.push_back(std::move(policy));
  }
  return policies;
}

}  // namespace mneme::server
