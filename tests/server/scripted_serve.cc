// A server whose model answers what a script says, for clients that are programs of their own.
//
//   scripted_serve SCRIPT    {"answers": [TEXT, ...], "context": TOKENS, "api_key": KEY}
//
// One answer a request, where one runs at a time; special tokens may be in it. Prints "listening on ADDRESS"; each
// request's line of the log goes to stderr.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "src/server/server.h"
#include "tests/server/agent_template.h"
#include "tests/server/scripted_pass.h"

namespace mneme::server_test {
namespace {

int serve(const char* file) {
  std::ifstream in(file);
  const auto script_json = nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  server::ServerOptions o;
  o.model = MNEME_MODEL_FILE;
  o.listen.port = 0;
  o.engine.context = script_json.value("context", 16384);
  o.engine.threads = 1;
  o.engine.pin_threads = false;
  o.chat_template = kAgentTemplate;
  if (script_json.contains("api_key")) o.listen.api_keys = {script_json["api_key"].get<std::string>()};
  o.log = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(Checkpoint::open(o.model)->tokenizer());
  Script script;
  for (const auto& answer : script_json["answers"])
    script.later.push_back(tokenizer->encode(answer.get<std::string>(), {.parse_special = true}));
  script.begin = -1;  // of an answer before the first
  server::Server server(o, [&] { return start_scripted(o, script); });
  server.stop_on_signals();
  fmt::print("listening on http://127.0.0.1:{}\n", server.port());
  std::fflush(stdout);
  server.run();
  return 0;
}

}  // namespace
}  // namespace mneme::server_test

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: scripted_serve SCRIPT\n");
    return 2;
  }
  try {
    return mneme::server_test::serve(argv[1]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "scripted_serve: {}\n", e.what());
    return 1;
  }
}
