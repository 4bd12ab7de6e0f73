// The shipped model's tokenizer, and answers that a test has written: tokens one after the other, then an end token.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/forward_pass.h"
#include "src/engine/session/running_model.h"
#include "src/server/server_options.h"

namespace mneme::server_test {

// What is answered to the next requests, one request after the other. Set while nothing runs; outlives the server.
struct Script {
  std::vector<TokenId> tokens;
  std::optional<std::int32_t> begin;  // length of the sequence whose next token is the first
  // To the requests after that, one each, where one runs at a time.
  std::deque<std::vector<TokenId>> later;
  std::int32_t last = 0;            // length at the last token
  std::atomic<bool> holds = false;  // nothing is computed behind the first token meanwhile
};

class ScriptedPass final : public ForwardPass {
 public:
  ScriptedPass(std::unique_ptr<Model> model, TokenId end, Script& script)
      : model_(std::move(model)), end_(end), script_(script) {}

  KvShape kv_shape(DType kv_dtype) const override { return model_->kv_shape(kv_dtype); }
  std::int64_t vocab() const override { return model_->config().vocab; }
  std::int64_t max_context() const override { return model_->max_context(); }
  const Model* model() const override { return model_.get(); }
  ConstTensorView run(const ForwardInput& input) override {
    logits_.clear();
    std::int64_t rows = 0;
    for (const SequenceRows& s : input.sequences) {
      const std::int32_t wanted = s.all_logits ? s.n_rows : std::int32_t{s.want_logits};
      for (std::int32_t i = wanted; i > 0; --i, ++rows) {
        const std::int32_t length = s.cache->length() - i + 1;
        // Several rows are a prompt's end, whose length may be that of the answer before, and one more.
        if (script_.begin && (s.n_rows > 1 || length != script_.last + 1) && !script_.later.empty()) {
          script_.tokens = std::move(script_.later.front());
          script_.later.pop_front();
          script_.begin.reset();
        }
        script_.last = length;
        if (!script_.begin) script_.begin = length;
        const std::size_t next = std::max(length - *script_.begin, 0);
        while (script_.holds && next > 0) std::this_thread::yield();
        logits_.resize((rows + 1) * vocab(), 0.0f);
        logits_[rows * vocab() + (next < script_.tokens.size() ? script_.tokens[next] : end_)] = 1000.0f;
      }
    }
    return view_of(static_cast<const float*>(logits_.data()), {rows, vocab()});
  }

 private:
  std::unique_ptr<Model> model_;
  TokenId end_;
  Script& script_;
  std::vector<float> logits_;
};

// The model of `options` under a ScriptedPass, with the chat template of `options`.
inline RunningModel start_scripted(const server::ServerOptions& options, Script& script) {
  auto text = std::make_unique<TextSide>(*Checkpoint::open(options.model));
  text->set_chat_template(options.chat_template);
  RunningModel running = start_model(Checkpoint::open(options.model), std::move(text), options.engine, {});
  auto threads = std::make_unique<ThreadPool>(1);
  const CpuContext context{.pool = threads.get()};
  auto model = Model::load(Checkpoint::open(options.model), {.context = options.engine.context}, context);
  running.engine =
      std::make_unique<Engine>(std::make_unique<ScriptedPass>(std::move(model), running.end_tokens.front(), script),
                               running.engine->options(), std::move(threads));
  return running;
}

}  // namespace mneme::server_test
