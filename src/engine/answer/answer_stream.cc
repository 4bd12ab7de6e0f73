#include "src/engine/answer/answer_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/engine/kv_method.h"

namespace mneme {

void AnswerPiece::append(AnswerPiece next) {
  text += next.text;
  std::move(next.tokens.begin(), next.tokens.end(), std::back_inserter(tokens));
  if (next.reads) reads = std::move(next.reads);
  if (next.end) end = std::move(next.end);
}

namespace {

// Of a request that has ended.
AnswerStats stats_of(const Engine& engine, RequestId id, StopReason reason) {
  const RequestStats stats = engine.stats(id);
  AnswerStats out{
      .prompt_tokens = stats.prompt_tokens,
      .shared_tokens = stats.shared_tokens,
      .answer_tokens = stats.answer_tokens,
      .prefill_seconds = stats.prefill_seconds,
      .decode_seconds = stats.decode_seconds,
      .decode_steps = std::max(stats.answer_tokens - (reason == StopReason::kEnd ? 0 : 1) - stats.accepted_tokens, 0),
      .verify_steps = stats.verify_steps,
      .drafted_tokens = stats.drafted_tokens,
      .accepted_tokens = stats.accepted_tokens,
      .kv_bytes = static_cast<std::int64_t>(engine.kv_bytes(id)),
      .method = {}};
  if (const MethodState* method = engine.method(id))
    out.method = kv_method_stats(method->stats(), method->plan(), engine.method_bytes(id), engine.pool());
  else
    out.method = full_attention_stats(engine.method_shape(), out.prompt_tokens + out.shared_tokens, out.decode_steps);
  return out;
}

}  // namespace

AnswerStream::AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop, bool keep_stop,
                           std::shared_ptr<const AnswerScope> scope)
    : decoder_(tokenizer), stops_(std::move(stop), keep_stop, std::move(scope)) {}

AnswerPiece AnswerStream::take(Engine& engine, const RequestEvent& event) {
  AnswerPiece piece;
  if (event.token) piece = push({.token = event.token->token, .logprob = event.token->logprob, .top = event.top});
  if (!stopped() && !event.finished) return piece;
  if (!event.finished) engine.stop(event.id);
  piece.append(finish());
  const StopReason reason = stopped() ? StopReason::kStopString : *event.finished;
  piece.end = AnswerSummary{
      .reason = reason, .stop_string = stops_.matched_string(), .stats = stats_of(engine, event.id, reason)};
  return piece;
}

AnswerPiece AnswerStream::push(TokenScore token) {
  const TokenId id = token.token;
  const std::string ended = stops_.is_mark(id) ? decoder_.end_character() : std::string();
  decoded_ += ended.size();
  held_.push_back({std::move(token), decoded_});
  const std::string text = decoder_.push(id);
  decoded_ += text.size();
  std::string out = stops_.push(ended);
  out += stops_.push_special(id);
  out += stops_.push(text);
  return give_out(std::move(out), false);
}

AnswerPiece AnswerStream::finish() {
  std::string text = stops_.push(decoder_.finish());
  text += stops_.finish();
  return give_out(std::move(text), !stops_.matched());
}

AnswerPiece AnswerStream::give_out(std::string text, bool last) {
  AnswerPiece piece{.text = std::move(text), .tokens = {}, .reads = {}, .end = {}};
  given_ += piece.text.size();
  while (!held_.empty() && (last || held_.front().begin < given_)) {
    piece.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
  return piece;
}

}  // namespace mneme
