// Any JSON schema, and any walk through what it lets through: an error that names what is wrong, or documents that
// parse and satisfy it.
//
// The input is a schema, a zero byte, and bytes that select the way. The definitions of JSON Schema themselves are the
// judge (tests/grammar/json_testing), but for patterns, whose automaton has a test of its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_schema.h"
#include "tests/text/grammar/json_testing.h"

namespace {

using namespace mneme;

constexpr std::size_t kMaxBytes = 200;

// Bytes that keep a document short are tried as often as all others together.
std::uint8_t preferred(const std::vector<std::uint8_t>& bytes, std::uint8_t choice) {
  constexpr std::string_view kEnds = "\"]}0e,:1";
  if (choice < 128)
    for (const char c : kEnds)
      if (std::find(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(c)) != bytes.end())
        return static_cast<std::uint8_t>(c);
  return bytes[choice % bytes.size()];
}

bool has_no_member_twice(const std::string& document) {
  try {
    read_exact_json(document, "document");
    return true;
  } catch (const Error&) {
    return false;
  }
}

void walk(const JsonMatcher& matcher, std::string_view choices, const nlohmann::ordered_json& schema, bool judged) {
  JsonMatcher::Threads here = matcher.begin();
  std::string document;
  while (document.size() < kMaxBytes) {
    const bool done = std::any_of(here.begin(), here.end(), [](const auto& t) { return t.done; });
    if (done) {
      const auto value = nlohmann::ordered_json::parse(document, nullptr, false);
      MNEME_CHECK(!value.is_discarded(), "not JSON: {}", document);
      MNEME_CHECK(has_no_member_twice(document), "a member twice: {}", document);
      MNEME_CHECK(!judged || test::is_valid(value, schema, schema), "{} is not of {}", document, schema.dump());
    }
    std::vector<std::uint8_t> bytes;
    JsonMatcher::Threads next;
    for (int byte = 0; byte < 256; ++byte) {
      next.clear();
      if (matcher.step_all(here, static_cast<std::uint8_t>(byte), next))
        bytes.push_back(static_cast<std::uint8_t>(byte));
    }
    MNEME_CHECK(done || !bytes.empty(), "a dead end behind {}", document);
    if (bytes.empty()) return;
    const std::uint8_t choice =
        document.size() < choices.size() ? static_cast<std::uint8_t>(choices[document.size()]) : 0;
    const std::uint8_t byte = preferred(bytes, choice);
    next.clear();
    matcher.step_all(here, byte, next);
    here = std::move(next);
    document += static_cast<char>(byte);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view source = text.substr(0, text.find('\0'));
  const std::string_view choices = text.substr(std::min(source.size() + 1, text.size()));
  try {
    const nlohmann::ordered_json schema = read_exact_json(source, "schema");
    const MemberOrder order = source.size() % 2 == 0 ? MemberOrder::kAny : MemberOrder::kDeclared;
    const JsonMatcher matcher(std::make_shared<const JsonGrammar>(compile_json_schema(schema, order)));
    walk(matcher, choices, schema, source.find("pattern") == std::string_view::npos);
  } catch (const Error&) {
  }
  return 0;
}
