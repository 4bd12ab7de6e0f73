#include "src/server/api/completion_reply.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "src/base/check.h"
#include "src/server/answer/answer_json.h"
#include "src/server/api/api_error.h"
#include "src/server/api/completion_json.h"

namespace mneme::server {

class CompletionReply::Sink final : public GenerationSink {
 public:
  Sink(std::shared_ptr<CompletionReply> reply, std::size_t prompt) : reply_(std::move(reply)), prompt_(prompt) {}
  void on_event(GenerationEvent event) override { reply_->on_event(prompt_, std::move(event)); }

 private:
  std::shared_ptr<CompletionReply> reply_;
  std::size_t prompt_;
};

CompletionReply::CompletionReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer)
    : setting_(std::move(setting)), request_(std::move(request)), writer_(std::move(writer)) {
  id_ = (request_.chat ? "chatcmpl-" : "cmpl-") + setting_.request_id;
  created_ =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  prompts_.resize(request_.inputs.size());
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    if (request_.echo || request_.return_token_ids) prompts_[i].tokens = request_.inputs[i].prompt;
  choices_.resize(prompts_.size() * request_.n());
  for (std::size_t i = 0; i < choices_.size() && request_.reading != nullptr; ++i)
    choices_[i].parts = std::make_unique<ChatAnswer>(request_.reading, *setting_.text.tokenizer,
                                                     fmt::format("{}/{}", setting_.request_id, i));
  open_ = choices_.size();
  chunk_head_ = json_text(head());
  chunk_head_.pop_back();  // choices follow
}

void CompletionReply::start() {
  writer_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_close();
  });
  const std::int64_t n = choices_.size();
  if (setting_.key != nullptr) {
    if (!setting_.key->has_room_for(n)) {
      return refuse(ApiError(429,
                             fmt::format("the key \"{}\" has as many answers in flight as it may have, {}: try again "
                                         "when one has ended",
                                         setting_.key->policy.name, setting_.key->policy.max_in_flight),
                             {}, "key_limit"));
    }
    setting_.key->in_flight += leased_ = n;
  }
  for (std::size_t i = 0; i < prompts_.size() && !closed_; ++i) {
    const auto id = setting_.loop.submit(std::move(request_.inputs[i]), std::make_shared<Sink>(shared_from_this(), i));
    if (!id) {
      cancel_all();
      return refuse(ApiError(429, "the server has as many requests as it takes: try again later", {}, "queue_full"));
    }
    generations_.push_back(*id);
  }
}

void CompletionReply::refuse(const ApiError& error) {
  writer_->respond({.status = 429, .headers = {{"Retry-After", setting_.retry_after()}}, .body = error.body()});
  close();
}

void CompletionReply::cancel_all() {
  for (const GenerationId id : generations_) setting_.loop.cancel(id);
}

void CompletionReply::close() {
  closed_ = true;
  writer_.reset();
  if (setting_.key != nullptr) setting_.key->in_flight -= std::exchange(leased_, 0);
}

void CompletionReply::on_close() {
  if (closed_) return;
  cancel_all();
  close();
}

void CompletionReply::fail(const Failure& failure) {
  cancel_all();
  const ApiError error = api_error_of(failure);
  if (streaming_) {
    writer_->write(fmt::format("data: {}\n\ndata: [DONE]\n\n", error.body()));
    writer_->end();
  } else {
    writer_->respond({.status = error.status, .body = error.body()});
  }
  close();
}

void CompletionReply::on_event(std::size_t prompt, GenerationEvent event) {
  if (closed_) return;
  if (event.failure) return fail(*event.failure);
  if (event.accepted && prompt == 0) queue_position_ = event.queue_position;
  if (event.accepted && request_.stream && !streaming_) begin_stream();
  const std::size_t at = prompt * request_.n() + event.choice;
  Choice& choice = choices_[at];
  if (event.progress && request_.include_progress) return stream_progress(prompt, *event.progress);
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

void CompletionReply::begin_stream() {
  streaming_ = true;
  writer_->begin_stream(
      {.content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}, queue_header()}, .body = {}},
      ": waiting\n\n");
}

std::pair<std::string, std::string> CompletionReply::queue_header() const {
  return {"X-Queue-Position", std::to_string(queue_position_)};
}

std::string CompletionReply::chunk(std::size_t choice, std::string_view delta, std::string_view logprobs,
                                   std::string_view more) const {
  return fmt::format("data: {},\"choices\":[{{\"index\":{},{},\"logprobs\":{},{}}}]{}}}\n\n", chunk_head_, choice,
                     delta, logprobs, more, request_.include_usage ? ",\"usage\":null" : "");
}

// An extension of OpenAI's API for stream_options.include_progress; fields as llama.cpp's server names them.
void CompletionReply::stream_progress(std::size_t prompt, const PromptProgress& p) {
  writer_->write(fmt::format(
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
      const std::size_t prompt = at / request_.n();
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
    if (request_.kv_retrieval) more += ",\"kv_retrieval\":" + json_text(retrieval_json(*piece.end, setting_.method));
    out += chunk(at, request_.chat ? "\"delta\":{}" : "\"text\":\"\"", "null", more);
  }
  if (!out.empty()) writer_->write(std::move(out));
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
    const std::string delta = delta_json(part, setting_.thought_field);
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
  json["created"] = created_;
  json["model"] = setting_.model;
  json["system_fingerprint"] = fmt::format("mneme-{}", version());
  return json;
}

std::string CompletionReply::echoed(std::size_t prompt) const {
  return setting_.text.tokenizer->decode(prompts_[prompt].tokens);
}

OrderedJson CompletionReply::logprobs_of(Choice& choice, std::span<const TokenScore> tokens) const {
  const Tokenizer& tokenizer = *setting_.text.tokenizer;
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
    out.add(*setting_.text.tokenizer, p.tokens[i],
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
  return json;
}

OrderedJson CompletionReply::choice_json(std::size_t at) {
  Choice& choice = choices_[at];
  const std::size_t prompt = at / request_.n();
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
    json["message"] = message_json(*choice.parts, setting_.thought_field);
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
  if (request_.kv_retrieval) json["kv_retrieval"] = retrieval_json(*choice.answer.end, setting_.method);
  return json;
}

void CompletionReply::finish() {
  if (request_.stream) {
    std::string out;
    if (request_.include_usage)
      out = fmt::format("data: {},\"choices\":[],\"usage\":{}}}\n\n", chunk_head_, json_text(usage()));
    writer_->write(out + "data: [DONE]\n\n");
    writer_->end();
  } else {
    OrderedJson json = head();
    json["choices"] = OrderedJson::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) json["choices"].push_back(choice_json(i));
    json["usage"] = usage();
    writer_->respond({.headers = {queue_header()}, .body = json_text(json)});
  }
  close();
}

}  // namespace mneme::server
