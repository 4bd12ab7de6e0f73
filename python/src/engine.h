// A model and its engine loop, as Python holds them: tokens in, requests out.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/gil.h"
#include "python/src/request.h"
#include "src/engine/loop/engine_loop.h"

namespace mneme::python {

namespace nb = nanobind;

// Keywords of Python, by their names.
using Settings = nb::typed<nb::dict, nb::str, nb::object>;

// Threads  any, with the GIL held; each call releases it while it computes or waits.
class PyEngine {
 public:
  struct Start {
    std::string model;
    EngineOptions engine;
    std::string chat_template;
    bool prefix_cache = true;
    double stream_seconds = 0.02;  // EngineLoop::Options
    bool kv_events = false;        // keep events of cached pages for take_kv_events()
    std::int64_t host_bytes = 0;   // KeeperOptions
    std::optional<DiskOptions> disk;
  };
  // A page of the prefix cache that is stored from now on (its tokens), or no longer (none).
  struct PageNews {
    bool stored = false;
    std::int64_t hash = 0;
    std::optional<std::int64_t> parent;
    std::vector<TokenId> tokens;
  };
  // Errors  as LanguageModel's constructor.
  explicit PyEngine(Start settings);
  ~PyEngine();
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  // Ends what runs; its readers get an error of kind "request". Calls after it too.
  void close();
  bool closed();

  struct Order {
    GenerationInput input;
    std::shared_ptr<Mailbox> mailbox;
  };
  // Errors  kOption: sampling options out of range. kRequest: closed, forked. What else is wrong fails the request.
  std::shared_ptr<Request> submit(Order order);
  // f32 [rows, vocabulary]: row r is what the model says after prompt[begin + r]. Full attention, or as `kv` says.
  //
  // Errors  as Engine::submit. nb::python_error: interrupted.
  std::vector<float> logits(std::vector<std::int32_t> prompt, std::int32_t begin, std::int32_t end);

  // Errors (all below)  kRequest: closed, forked.
  const RunningModel& model();
  std::shared_ptr<EngineLoop> loop();
  std::shared_ptr<const Plan> plan_for(const std::optional<std::string>& kv, KvMethodOptions& options);
  // Since the last call, in order; without Start::kv_events none.
  std::vector<PageNews> take_kv_events();
  std::int64_t kv_blocks() const { return kv_blocks_; }

 private:
  const ProcessMark process_;
  NoLoopMetrics metrics_;
  KvMethodOptions kv_;
  std::mutex mutex_;
  std::shared_ptr<EngineLoop> loop_;
  std::vector<std::weak_ptr<Request>> requests_;
  std::atomic<std::int64_t> next_ = 0;
  std::int64_t kv_blocks_ = 0;
  std::mutex news_mutex_;
  std::vector<PageNews> page_news_;
};

// Tokens as Python has them: id, log-probability, the likeliest in its place.
using ScoredTokens = std::vector<std::tuple<std::int32_t, float, std::vector<std::pair<std::int32_t, float>>>>;
ScoredTokens scored(const std::vector<TokenScore>& tokens);

void bind_engine(nb::module_& m);
void bind_session(nb::module_& m);
void bind_stats(nb::module_& m);
void bind_recipe(nb::module_& m);

// SamplingParams' fields, as a dictionary, to what the engine takes.
//
// Errors  kOption, kFormat (a JSON schema), nb::type_error.
GenerationInput input_of(const Settings& params, const TextSide& text);

}  // namespace mneme::python
