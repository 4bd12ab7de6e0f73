// The body of a completion or chat request to what the engine is asked. Untrusted input: every field is checked, and
// what is wrong is named.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/loop/generation.h"
#include "src/engine/session/running_model.h"
#include "src/formats/json.h"
#include "src/server/answer/answer_formats.h"
#include "src/server/answer/answer_memory.h"
#include "src/server/answer/chat_answer.h"
#include "src/server/answer/kept_constraints.h"
#include "src/server/api/chat_prompt.h"
#include "src/server/server_options.h"
#include "src/text/grammar/json_nodes.h"

namespace mneme::server {

// Plans of the methods that requests name; forks share a method's index only where they share its plan. Threads: any.
class RequestPlans {
 public:
  explicit RequestPlans(const RunningModel& model) : model_(model) {}
  // Errors  kOption.
  std::shared_ptr<const Plan> plan_for(const KvMethodOptions& options);

 private:
  const RunningModel& model_;
};

// A request's body, parsed and as text.
struct Body {
  JsonRef json;
  std::string_view text;
};

// What requests are read against.
struct RequestContext {
  const RunningModel& model;
  const ServerOptions& options;
  const std::string& served_name;
  RequestPlans& plans;
  const AnswerFormats& formats;
  AnswerMemory& memory;
  KeptConstraints& constraints;
  const KeyPolicy* key = nullptr;  // of the caller; null: no limits
  std::int32_t group = 0;          // of the key's requests
};

struct CompletionRequest {
  bool chat = false;
  bool stream = false, include_usage = false, include_progress = false;
  bool echo = false;
  bool logprobs = false;
  bool kv_retrieval = false;  // tell what retrieval did
  bool return_token_ids = false;
  std::string model;                    // as the request named it: the served name, or a preset's
  std::vector<GenerationInput> inputs;  // by prompt
  std::string user_id;
  std::shared_ptr<const AnswerReading> reading;  // of a chat's answers; null: they are their text
  std::optional<JsonGrammar> document;           // what the text of an answer is; nothing: any text
  AnswerRecord record;                           // of each of its answers
};

// Errors  ApiError, mneme::Error: 400 and 404.
CompletionRequest parse_completion(const Body& body, const RequestContext& context);
CompletionRequest parse_chat(const Body& body, const RequestContext& context);

// The prompt of a chat, and how its answers are read.
struct ChatPrompt {
  std::vector<TokenId> tokens;  // the model's own in its earlier answers, where they are remembered
  std::shared_ptr<const AnswerReading> reading;
};
ChatPrompt prompt_of_chat(const RequestContext& context, const Conversation& conversation, std::string_view salt);

// Ids from 0 to the vocabulary's end.
std::vector<TokenId> parse_tokens(const JsonRef& list, std::int64_t vocabulary);

}  // namespace mneme::server
