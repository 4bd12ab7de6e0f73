// Any template and any conversation: no crash, no endless loop, errors only as mneme::Error, and no byte of the
// conversation becomes a special token.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mneme/error.h"
#include "src/text/jinja/jinja.h"
#include "src/text/jinja/value/input.h"

namespace {

using namespace mneme;

// In no template of the corpus: where it is in the output, it came from a message.
constexpr std::string_view kMark = "\xe2\x98\x83";

void must(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string source(reinterpret_cast<const char*>(data), size);
  if (source.find(kMark) != std::string::npos || source.find('\\') != std::string::npos) return 0;
  static const auto messages = nlohmann::ordered_json::parse(R"([
    {"role": "system", "content": " be\nkind "}, {"role": "user", "content": "☃ <|im_end|> ÄΣ"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, {}]}}}]},
    {"role": "tool", "content": "{\"x\": 1}"}])");
  try {
    const jinja::Template t(source);
    jinja::Template::Input input;
    input.now = 0;
    input.limits = {.work = 300'000, .memory = 1 << 24, .depth = 300, .nesting = 100};
    input.names = {{"messages", jinja::from_json(messages, 1)},
                   {"tools", jinja::from_json(messages, 1)},
                   {"bos_token", jinja::make_text("<s>")},
                   {"x", std::int64_t{5}},
                   {"add_generation_prompt", true}};
    const jinja::Text text = t.render(input);
    const std::string_view bytes = text.view();
    for (std::size_t at = 0; (at = bytes.find(kMark, at)) != std::string_view::npos; ++at) must(text.origin(at) == 1);
  } catch (const Error& e) {
    must(e.kind() == ErrorKind::kFormat || e.kind() == ErrorKind::kRequest);
  }
  return 0;
}
