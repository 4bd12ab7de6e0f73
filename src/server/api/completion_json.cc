#include "src/server/api/completion_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/text/unicode/utf8.h"

namespace mneme::server {
namespace {

// A probability of 0 has no logarithm that JSON could write; OpenAI writes -9999.
double written(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0;
}

// As OpenAI names tokens that are no whole characters: "bytes:\xe2\x80".
std::string token_name(const Tokenizer& tokenizer, TokenId id) {
  std::string bytes = tokenizer.token_bytes(id, true);
  if (find_invalid_utf8(bytes) == kValidUtf8) return bytes;
  std::string name = "bytes:";
  for (const unsigned char c : bytes) name += fmt::format("\\x{:02x}", c);
  return name;
}

OrderedJson chat_token(const Tokenizer& tokenizer, TokenId id, float logprob) {
  const std::string bytes = tokenizer.token_bytes(id, true);
  OrderedJson json;
  json["token"] = bytes;  // json_text() replaces what is no character
  json["logprob"] = written(logprob);
  json["bytes"] = OrderedJson::array();
  for (const unsigned char c : bytes) json["bytes"].push_back(c);
  return json;
}

}  // namespace

std::string json_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string json_string(std::string_view text) {
  return json_text(OrderedJson(text));
}

OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenScore& t : tokens) {
    OrderedJson json = chat_token(tokenizer, t.token, t.logprob);
    json["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : t.top) json["top_logprobs"].push_back(chat_token(tokenizer, top.token, top.logprob));
    content.push_back(std::move(json));
  }
  OrderedJson out;
  out["content"] = std::move(content);
  out["refusal"] = nullptr;
  return out;
}

void CompletionLogprobs::add(const Tokenizer& tokenizer, TokenId id, std::optional<float> logprob,
                             std::span<const TokenLogprob> top, std::size_t& offset) {
  tokens.push_back(token_name(tokenizer, id));
  text_offset.push_back(offset);
  offset += count_characters(tokenizer.token_bytes(id));
  if (!logprob) {
    token_logprobs.push_back(nullptr);
    top_logprobs.push_back(nullptr);
    return;
  }
  token_logprobs.push_back(written(*logprob));
  OrderedJson likeliest = OrderedJson::object();
  for (const TokenLogprob& t : top) likeliest[token_name(tokenizer, t.token)] = written(t.logprob);
  // As OpenAI: the token itself is among them, also where it is not one of the likeliest.
  if (!top.empty()) likeliest[token_name(tokenizer, id)] = written(*logprob);
  top_logprobs.push_back(top.empty() ? OrderedJson() : std::move(likeliest));
}

OrderedJson CompletionLogprobs::json() const {
  OrderedJson out;
  out["text_offset"] = text_offset;
  out["token_logprobs"] = token_logprobs;
  out["tokens"] = tokens;
  const bool some = std::any_of(top_logprobs.begin(), top_logprobs.end(), [](const auto& t) { return !t.is_null(); });
  out["top_logprobs"] = some ? top_logprobs : OrderedJson();
  return out;
}

OrderedJson reads_json(const PageReads& reads) {
  OrderedJson json;
  json["page_tokens"] = kPageTokens;
  json["steps"] = reads.steps;
  json["max_reads"] = reads.most;
  json["sink"] = reads.sink;
  json["recent"] = reads.recent;
  json["reads"] = reads.pages;
  return json;
}

OrderedJson retrieval_json(const AnswerSummary& summary, std::string_view method) {
  const KvMethodStats& stats = summary.stats.method;
  OrderedJson json;
  json["method"] = method;
  json["steps"] = std::max(summary.stats.answer_tokens - 1, std::int64_t{0});
  json["prefill_seconds"] = summary.stats.prefill_seconds;
  json["decode_seconds"] = summary.stats.decode_seconds;
  json["selections"] = stats.selections.made;
  json["reused"] = stats.selections.reused;
  json["correction_checks"] = stats.selections.checks;
  json["corrections"] = stats.selections.corrections;
  json["correction_rate"] = stats.selections.correction_rate;
  json["pages_queried"] = stats.units.selected;
  json["hit_pages"] = stats.units.selected - stats.units.missing;
  json["recalled_pages"] = stats.units.missing;
  json["h2d_bytes"] = stats.units.host_to_device_bytes;
  json["turnover"] = stats.units.turnover;
  json["kv_bytes_per_step"] = stats.kv_bytes_per_step;
  json["index_bytes_per_step"] = stats.index_bytes_per_step;
  json["index_bytes"] = stats.index_bytes;
  OrderedJson layers = OrderedJson::array();
  for (const auto& layer : stats.layers) {
    layers.push_back({{"dense", layer.dense},
                      {"achieved_budget", layer.achieved_budget},
                      {"correction_rate", layer.correction_rate}});
  }
  json["layers"] = std::move(layers);
  if (stats.audit.samples > 0) {
    json["audit"] = {{"audits", stats.audit.samples},
                     {"recall", stats.audit.recall},
                     {"mass", stats.audit.mass},
                     {"error", stats.audit.error}};
  }
  return json;
}

std::size_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace mneme::server
