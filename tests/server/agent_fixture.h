// A server whose model answers what a test has written, for the APIs of agents.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/agent_template.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"
#include "tests/server/scripted_pass.h"

namespace mneme::server_test {

inline constexpr const char* kThoughtTextCalls =
    "<think>\nI add.\n</think>\n\nAdding.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": "
    "\"ü}\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

// A server-sent event with its name.
struct NamedEvent {
  std::string name;
  nlohmann::json data;
};

inline std::vector<NamedEvent> named_events(const std::string& body) {
  std::vector<NamedEvent> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string block = body.substr(at, end - at);
    at = end + 2;
    const std::size_t line = block.find('\n');
    if (!block.starts_with("event: ") || line == std::string::npos) {
      ADD_FAILURE() << "no named event: " << block;
      continue;
    }
    events.push_back({block.substr(7, line - 7), nlohmann::json::parse(block.substr(line + 7))});
    EXPECT_EQ(events.back().name, events.back().data["type"]);
  }
  return events;
}

// The names in order, equal ones that follow each other once.
inline std::vector<std::string> names_of(const std::vector<NamedEvent>& events) {
  std::vector<std::string> names;
  for (const NamedEvent& e : events)
    if (names.empty() || names.back() != e.name) names.push_back(e.name);
  return names;
}

class AgentServer : public testing::Test {
 protected:
  explicit AgentServer(server::ServerOptions options = agent_options())
      : server_(logged(options), [this, options] { return start_scripted(options, script_); }),
        tokenizer_(Tokenizer::make(Checkpoint::open(options.model)->tokenizer())) {}

  static server::ServerOptions agent_options() {
    server::ServerOptions o = RunningServer::small();
    o.engine.context = 2048;
    o.chat_template = kAgentTemplate;
    return o;
  }
  void script(const std::string& answer) {
    script_.tokens = tokenizer_->encode(answer, {.parse_special = true});
    script_.begin.reset();
  }
  Response post_to(const std::string& path, const nlohmann::json& body, const Headers& headers = {}) {
    return post(server_.port(), path, body, headers);
  }
  bool has_logged(const std::string& words) {
    const std::lock_guard lock(mutex_);
    return std::any_of(log_.begin(), log_.end(),
                       [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }

 private:
  server::ServerOptions logged(server::ServerOptions o) {
    o.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(line);
    };
    return o;
  }

  std::mutex mutex_;
  std::vector<std::string> log_;

 protected:
  Script script_;
  RunningServer server_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace mneme::server_test
