// Exact output of Python's jinja2 for templates and constructs (tools/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "mneme/error.h"
#include "src/text/jinja/jinja.h"
#include "src/text/jinja/value/input.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

const Json& goldens() {
  static const Json all =
      Json::parse(test::read_file(std::string(MNEME_SOURCE_DIR) + "/tests/text/chat/data/chat-goldens.json"));
  return all;
}

// Same form as the golden file: a text, or an object with the error's message where the template raises it.
Json rendered(const std::string& source, const Json& names) {
  try {
    const jinja::Template t(source);
    jinja::Template::Input input;
    input.now = goldens()["now"].get<std::time_t>();
    for (const auto& [name, value] : names.items()) input.names.emplace_back(name, jinja::from_json(value, 1));
    return std::string(t.render(input).view());
  } catch (const Error& e) {
    EXPECT_TRUE(e.kind() == ErrorKind::kFormat || e.kind() == ErrorKind::kRequest) << e.what();
    const std::string message = e.what();
    if (message.starts_with("chat template")) return {{"error", nullptr}};
    return {{"error", message}};
  }
}

class ChatGolden : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
};

// Deliberately unsupported; docs/design/jinja.md lists it.
bool is_left_out(const std::string& source) {
  for (const char* part : {"{% include", "{% import", "{% extends", "{% autoescape"})
    if (source.find(part) != std::string::npos) return true;
  return false;
}

TEST_F(ChatGolden, Constructs) {
  int n = 0;
  for (const Json& c : goldens()["constructs"]) {
    const auto source = c[0].get<std::string>();
    if (is_left_out(source)) continue;
    EXPECT_EQ(rendered(source, goldens()["names"]).dump(), c[1].dump()) << source;
    ++n;
  }
  EXPECT_GT(n, 250);
}

TEST_F(ChatGolden, Templates) {
  int n = 0;
  for (const Json& c : goldens()["chats"]) {
    Json names = goldens()["settings"][c[2].get<std::string>()];
    names["messages"] = goldens()["conversations"][c[1].get<std::string>()];
    names["bos_token"] = "<s>";
    names["eos_token"] = "</s>";
    EXPECT_EQ(rendered(goldens()["templates"][c[0].get<std::string>()], names).dump(), c[3].dump())
        << c[0] << " " << c[1] << " " << c[2];
    ++n;
  }
  EXPECT_GT(n, 300);
}

}  // namespace
}  // namespace mneme
