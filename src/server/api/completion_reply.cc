#include "src/server/api/completion_reply.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/check.h"
#include "src/server/answer/answer_json.h"
#include "src/server/api/completion_json.h"

namespace mneme::server {

CompletionReply::CompletionReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer)
    : Reply(std::move(setting), std::move(request.inputs), std::move(writer)), request_(std::move(request)) {
  id_ = (request_.chat ? "chatcmpl-" : "cmpl-") + this->setting().request_id;
  prompts_.resize(n_prompts());
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    if (request_.echo || request_.return_token_ids) prompts_[i].tokens = inputs()[i].prompt;
  choices_.resize(n_prompts() * n());
  for (std::size_t i = 0; i < choices_.size() && request_.reading != nullptr; ++i)
    choices_[i].parts = std::make_unique<ChatAnswer>(request_.reading, *this->setting().text.tokenizer,
                                                     fmt::format("{}/{}", this->setting().request_id, i));
  for (Choice& choice : choices_) choice.record = request_.record;
  open_ = choices_.size();
  chunk_head_ = json_text(head());
  chunk_head_.pop_back();  // choices follow
}

void CompletionReply::take(std::size_t prompt, GenerationEvent event) {
  if (event.accepted && request_.stream && !streaming()) begin_stream([] { return ": waiting\n\n"; });
  const std::size_t at = prompt * n() + event.choice;
  Choice& choice = choices_[at];
  if (event.progress && request_.include_progress) return stream_progress(prompt, *event.progress);
  choice.record.take(event.piece);
  const bool tells = event.prompt || !event.piece.empty(), ends = event.piece.end.has_value();
  if (event.prompt) prompts_[prompt].summary = std::move(event.prompt);
  if (request_.stream) {
    if (tells) stream_piece(at, event.piece);
    if (ends) choice.answer.end = std::move(event.piece.end);
  } else {
    if (choice.parts != nullptr) choice.parts->take(event.piece.text, event.piece.tokens);
    if (choice.parts != nullptr && ends) choice.parts->finish();
    choice.answer.append(std::move(event.piece));
  }
  if (ends && --open_ == 0) finish();
}

// ---- streaming

std::string CompletionReply::chunk(std::size_t choice, std::string_view delta, std::string_view logprobs,
                                   std::string_view more) const {
  return fmt::format("data: {},\"choices\":[{{\"index\":{},{},\"logprobs\":{},{}}}]{}}}\n\n", chunk_head_, choice,
                     delta, logprobs, more, request_.include_usage ? ",\"usage\":null" : "");
}

// An extension of OpenAI's API for stream_options.include_progress; fields as llama.cpp's server names them.
void CompletionReply::stream_progress(std::size_t prompt, const PromptProgress& p) {
  write(fmt::format(
      "data: {},\"choices\":[],\"prompt_progress\":{{\"index\":{},\"total\":{},\"cache\":{},\"processed\":{},"
      "\"time_ms\":{:.0f}}}{}}}\n\n",
      chunk_head_, prompt, p.total, p.cached, p.processed, 1000 * p.seconds,
      request_.include_usage ? ",\"usage\":null" : ""));
}

void CompletionReply::stream_piece(std::size_t at, const AnswerPiece& piece) {
  Choice& choice = choices_[at];
  constexpr std::string_view kGoesOn = "\"finish_reason\":null";
  std::string out;
  if (!std::exchange(choice.begun, true)) {
    if (request_.chat) {
      out += chunk(at, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null", kGoesOn);
    } else if (request_.echo) {
      const std::size_t prompt = at / n();
      const std::string logprobs = request_.logprobs ? json_text(echo_logprobs(prompt, choice)) : "null";
      const std::string text = echoed(prompt);
      choice.characters = count_characters(text);
      out += chunk(at, fmt::format("\"text\":{}", json_string(text)), logprobs, kGoesOn);
    }
  }
  std::string more(kGoesOn);
  if (request_.return_token_ids && !piece.tokens.empty()) {
    OrderedJson ids = OrderedJson::array();
    for (const TokenScore& t : piece.tokens) ids.push_back(t.token);
    more += ",\"token_ids\":" + json_text(ids);
  }
  if (piece.reads && !piece.end) more += ",\"kv_reads\":" + json_text(reads_json(*piece.reads));
  out += choice.parts != nullptr ? answer_chunks(at, piece, more) : text_chunk(at, piece, more);
  if (piece.end) {
    more = fmt::format("\"finish_reason\":\"{}\"", finish_of(choice, piece.end->reason));
    if (piece.reads) more += ",\"kv_reads\":" + json_text(reads_json(*piece.reads));
    if (request_.kv_retrieval) more += ",\"kv_retrieval\":" + json_text(retrieval_json(*piece.end, setting().method));
    out += chunk(at, request_.chat ? "\"delta\":{}" : "\"text\":\"\"", "null", more);
  }
  if (!out.empty()) write(std::move(out));
}

std::string CompletionReply::text_chunk(std::size_t at, const AnswerPiece& piece, std::string_view more) {
  const bool asked = !piece.tokens.empty() && (request_.logprobs || request_.return_token_ids);
  if (piece.text.empty() && !piece.reads && !asked) return {};
  const std::string logprobs = request_.logprobs ? json_text(logprobs_of(choices_[at], piece.tokens)) : "null";
  const std::string text = json_string(piece.text);
  return chunk(at, request_.chat ? "\"delta\":{\"content\":" + text + "}" : "\"text\":" + text, logprobs, more);
}

// A chunk for each part of the answer. What else the piece tells goes with the first one.
std::string CompletionReply::answer_chunks(std::size_t at, const AnswerPiece& piece, std::string_view more) {
  constexpr std::string_view kGoesOn = "\"finish_reason\":null";
  ChatAnswer& answer = *choices_[at].parts;
  std::vector<ChatAnswer::Piece> pieces = answer.take(piece.text, piece.tokens);
  if (piece.end) {
    std::vector<ChatAnswer::Piece> last = answer.finish();
    std::move(last.begin(), last.end(), std::back_inserter(pieces));
  }
  std::string out;
  for (const ChatAnswer::Piece& part : pieces) {
    const std::string delta = delta_json(part, setting().thought_field);
    if (delta.empty()) continue;
    const bool scored = request_.logprobs && part.event.part == AnswerPart::kText;
    const std::string logprobs = scored ? json_text(logprobs_of(choices_[at], part.tokens)) : "null";
    out += chunk(at, "\"delta\":" + delta, logprobs, out.empty() ? more : kGoesOn);
  }
  if (out.empty() && more != kGoesOn) out = chunk(at, "\"delta\":{}", "null", more);
  return out;
}

// ---- objects

std::string_view CompletionReply::finish_of(const Choice& choice, StopReason reason) {
  const bool ended = reason == StopReason::kEnd || reason == StopReason::kStopString;
  const bool calls = choice.parts != nullptr && !choice.parts->calls().empty();
  return ended && calls ? "tool_calls" : finish_reason_name(reason);
}

OrderedJson CompletionReply::head() const {
  OrderedJson json;
  json["id"] = id_;
  json["object"] = request_.chat ? (request_.stream ? "chat.completion.chunk" : "chat.completion") : "text_completion";
  json["created"] = created();
  json["model"] = setting().model;
  json["system_fingerprint"] = fmt::format("mneme-{}", version());
  return json;
}

std::string CompletionReply::echoed(std::size_t prompt) const {
  return setting().text.tokenizer->decode(prompts_[prompt].tokens);
}

OrderedJson CompletionReply::logprobs_of(Choice& choice, std::span<const TokenScore> tokens) const {
  const Tokenizer& tokenizer = *setting().text.tokenizer;
  if (request_.chat) return chat_logprobs(tokenizer, tokens);
  CompletionLogprobs out;
  for (const TokenScore& t : tokens) out.add(tokenizer, t.token, t.logprob, t.top, choice.characters);
  return out.json();
}

OrderedJson CompletionReply::echo_logprobs(std::size_t prompt, Choice& choice) const {
  CompletionLogprobs out;
  const Prompt& p = prompts_[prompt];
  MNEME_CHECK(p.summary.has_value(), "an answer before its prompt");
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    const bool scored = i > 0 && i <= p.summary->scores.size();
    out.add(*setting().text.tokenizer, p.tokens[i],
            scored ? std::optional(p.summary->scores[i - 1].logprob) : std::nullopt,
            scored ? std::span<const TokenLogprob>(p.summary->scores[i - 1].top) : std::span<const TokenLogprob>(),
            choice.characters);
  }
  return out.json();
}

OrderedJson CompletionReply::usage() const {
  std::int64_t prompt = 0, cached = 0, answer = 0;
  for (const Prompt& p : prompts_) {
    if (!p.summary) continue;
    prompt += p.summary->tokens;
    cached += p.summary->cached_tokens;
  }
  for (const Choice& c : choices_) answer += c.answer.end ? c.answer.end->stats.answer_tokens : 0;
  OrderedJson json;
  json["prompt_tokens"] = prompt;
  json["completion_tokens"] = answer;
  json["total_tokens"] = prompt + answer;
  json["prompt_tokens_details"] = {{"cached_tokens", cached}};
  if (!request_.chat) return json;
  std::int64_t thought = 0;
  for (const Choice& c : choices_) thought += c.parts != nullptr ? c.parts->thought_tokens() : 0;
  json["completion_tokens_details"] = {{"reasoning_tokens", thought}};
  return json;
}

OrderedJson CompletionReply::choice_json(std::size_t at) {
  Choice& choice = choices_[at];
  const std::size_t prompt = at / n();
  OrderedJson json;
  json["index"] = at;
  OrderedJson logprobs;
  if (request_.logprobs && request_.echo) {
    logprobs = echo_logprobs(prompt, choice);
    const OrderedJson answer = logprobs_of(choice, choice.answer.tokens);
    for (const char* key : {"text_offset", "token_logprobs", "tokens", "top_logprobs"}) {
      if (answer[key].is_null()) continue;
      if (logprobs[key].is_null()) logprobs[key] = OrderedJson::array();
      for (const auto& v : answer[key]) logprobs[key].push_back(v);
    }
  } else if (request_.logprobs) {
    logprobs = logprobs_of(choice, choice.parts != nullptr ? choice.parts->text_tokens() : choice.answer.tokens);
  }
  if (choice.parts != nullptr) {
    json["message"] = message_json(*choice.parts, setting().thought_field);
  } else if (request_.chat) {
    json["message"] = {{"role", "assistant"}, {"content", choice.answer.text}, {"refusal", nullptr}};
  } else {
    json["text"] = request_.echo ? echoed(prompt) + choice.answer.text : choice.answer.text;
  }
  json["logprobs"] = std::move(logprobs);
  json["finish_reason"] = finish_of(choice, choice.answer.end->reason);
  if (request_.return_token_ids) {
    json["prompt_token_ids"] = prompts_[prompt].tokens;
    json["token_ids"] = OrderedJson::array();
    for (const TokenScore& t : choice.answer.tokens) json["token_ids"].push_back(t.token);
  }
  if (choice.answer.reads) json["kv_reads"] = reads_json(*choice.answer.reads);
  if (request_.kv_retrieval) json["kv_retrieval"] = retrieval_json(*choice.answer.end, setting().method);
  return json;
}

void CompletionReply::finish() {
  if (request_.stream) {
    std::string out;
    if (request_.include_usage)
      out = fmt::format("data: {},\"choices\":[],\"usage\":{}}}\n\n", chunk_head_, json_text(usage()));
    end_stream(out + "data: [DONE]\n\n");
  } else {
    OrderedJson json = head();
    json["choices"] = OrderedJson::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) json["choices"].push_back(choice_json(i));
    json["usage"] = usage();
    respond(json);
  }
}

}  // namespace mneme::server
