// What routers and evaluation harnesses ask of a replica, under the names that SGLang's servers gave them.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "src/base/ratio.h"
#include "src/kv/page_pool.h"
#include "src/server/api/api.h"

namespace mneme::server {
namespace {

OrderedJson piece_of(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  if (!id) return nullptr;
  const TokenId one[] = {*id};
  return tokenizer.decode(one, true);
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

// Tokens that the pool's blocks hold: a token has one block in each layer and KV head for every page.
std::int64_t tokens_of(std::int64_t blocks, const KvShape& shape) {
  return blocks / shape.blocks_per_page() * kPageTokens;
}

}  // namespace

// lm_eval's local-completions reads this.
void Api::tokenizer_info(const HttpRequest&, Writer writer) {
  const TextSide& text = *loop_.model().text;
  const ChatTemplate* const chat = text.chat.chat_template();
  OrderedJson json;
  json["eos_token"] = piece_of(*text.tokenizer, text.tokenizer->eos());
  json["bos_token"] = piece_of(*text.tokenizer, text.tokenizer->bos());
  json["pad_token"] = nullptr;
  json["chat_template"] = chat == nullptr ? OrderedJson() : OrderedJson(chat->source());
  answer(*writer, json);
}

void Api::model_info(const HttpRequest&, Writer writer) {
  const ModelInfo& info = loop_.model().text->info;
  OrderedJson json;
  json["model_path"] = served_name_;
  json["tokenizer_path"] = served_name_;
  json["served_model_name"] = served_name_;
  json["is_generation"] = true;
  json["model_type"] = info.architecture;
  json["vocab_size"] = info.vocabulary;
  json["max_context_length"] = loop_.model().engine->options().context;
  answer(*writer, json);
}

void Api::server_info(const HttpRequest&, Writer writer) {
  const EngineOptions& o = loop_.model().engine->options();
  const PagePool& pool = loop_.model().engine->pool();
  OrderedJson json;
  json["version"] = version();
  json["model_path"] = served_name_;
  json["served_model_name"] = served_name_;
  json["tp_size"] = 1;
  json["dp_size"] = 1;
  json["context_length"] = o.context;
  json["page_size"] = kPageTokens;
  json["max_running_requests"] = o.max_sequences;
  json["max_total_num_tokens"] = tokens_of(pool.n_blocks(), pool.shape());
  json["max_prefill_tokens"] = o.max_batched_tokens;
  json["kv_events"] = nullptr;
  if (events_ != nullptr)
    json["kv_events"] = {{"endpoint", events_->endpoint()},
                         {"replay", events_->replay_endpoint()},
                         {"topic", options_.kv_events->topic},
                         {"block_size", kPageTokens}};
  answer(*writer, json);
}

void Api::loads(const HttpRequest&, Writer writer) {
  const Metrics::Gauges gauges = metrics_.gauges();
  const PagePool& pool = loop_.model().engine->pool();
  OrderedJson load;
  load["dp_rank"] = 0;
  load["num_running_reqs"] = gauges.running;
  load["num_waiting_reqs"] = gauges.waiting;
  load["num_total_reqs"] = gauges.running + gauges.waiting;
  load["num_used_tokens"] = tokens_of(gauges.kv_blocks_used, pool.shape());
  load["max_total_num_tokens"] = tokens_of(pool.n_blocks(), pool.shape());
  load["token_usage"] = ratio(gauges.kv_blocks_used, std::max<std::int64_t>(pool.n_blocks(), 1));
  load["max_running_requests"] = loop_.model().engine->options().max_sequences;
  OrderedJson json;
  json["timestamp"] = utc_now();
  json["version"] = version();
  json["dp_rank_count"] = 1;
  json["loads"] = OrderedJson::array({std::move(load)});
  answer(*writer, json);
}

}  // namespace mneme::server
