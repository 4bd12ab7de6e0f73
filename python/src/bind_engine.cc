// _core.Engine, _core.Request, _core.Mailbox.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "python/src/arrays.h"
#include "python/src/engine.h"
#include "src/engine/kv_method.h"
#include "src/formats/json.h"
#include "src/server/api/api_error.h"
#include "src/server/api/chat_prompt.h"
#include "src/text/grammar/json_constraint.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_schema.h"

namespace mneme::python {
namespace {

using nb::literals::operator""_a;

// Settings by the names of LLM's keywords.
struct SettingsReader {
  Settings values;

  template <typename T>
  T get(const char* key, T otherwise) const {
    return values.contains(key) ? nb::cast<T>(values[key]) : otherwise;
  }
};

PyEngine::Start settings_of(const std::string& model, Settings options) {
  const SettingsReader o{options};
  PyEngine::Start s{.model = model, .engine = {}, .chat_template = {}};
  EngineOptions& e = s.engine;
  e.device = parse_device(o.get<std::string>("device", "cpu"));
  e.gpu_layers = parse_gpu_layers(o.get<std::string>("gpu_layers", "auto"));
  e.kv_store = parse_kv_residency(o.get<std::string>("kv_store", "auto"));
  e.kv_cache_dtype = parse_kv_dtype(o.get<std::string>("kv_cache_dtype", "bf16"));
  e.numa = parse_numa_policy(o.get<std::string>("numa", "none"));
  e.context = o.get<std::int64_t>("max_model_len", 0);
  e.kv_memory_bytes = o.get<std::int64_t>("kv_memory_bytes", 0);
  e.max_sequences = o.get<int>("max_num_seqs", 16);
  e.max_batched_tokens = o.get<int>("max_num_batched_tokens", 1024);
  e.threads = o.get<int>("threads", 0);
  e.pin_threads = o.get<bool>("pin_threads", true);
  e.deterministic = o.get<bool>("deterministic", false);
  e.audit_every = o.get<int>("audit_every", 0);
  e.speculation = parse_speculation(o.get<std::string>("speculative", "off"));
  e.inter_token_ms = o.get<double>("inter_token_ms", 0.0);
  e.kv_admission = parse_kv_admission(o.get<std::string>("kv_admission", "reserve"));
  // "auto" is no recipe yet: what it stands for is decided when it is known where the cache lies.
  e.kv.method = o.get<std::string>("kv", "full");
  if (e.kv.method != kAutoMethod) {
    e.kv.recipe = parse_recipe(e.kv.method);
    e.kv.method = e.kv.recipe->name;
  }
  s.chat_template = o.get<std::string>("chat_template", "");
  s.prefix_cache = o.get<bool>("enable_prefix_caching", true);
  s.stream_seconds = o.get<double>("stream_interval_ms", 20.0) / 1000;
  s.kv_events = o.get<bool>("kv_events", false);
  s.host_bytes = o.get<std::int64_t>("kv_host_bytes", 0);
  if (s.host_bytes != 0 && !s.prefix_cache) fail(ErrorKind::kOption, "kv_host_bytes: only with enable_prefix_caching");
  if (const auto folder = o.get<std::string>("kv_disk", ""); !folder.empty()) {
    if (!s.prefix_cache) fail(ErrorKind::kOption, "kv_disk: only with enable_prefix_caching");
    s.disk = DiskOptions{.folder = folder, .bytes = o.get<std::int64_t>("kv_disk_bytes", 0)};
  }
  return s;
}

std::vector<TokenBias> bias_of(const nb::dict& values) {
  std::vector<TokenBias> out;
  for (const auto& [token, bias] : values)
    out.push_back({.token = nb::cast<std::int32_t>(token), .bias = nb::cast<float>(bias)});
  return out;
}

std::vector<TokenId> tokenize(PyEngine& engine, const std::string& text, bool special, bool bos) {
  const Tokenizer& tokenizer = *engine.model().text->tokenizer;
  return tokenizer.encode(text, {.parse_special = special, .add_bos = bos && tokenizer.adds_bos()});
}

std::vector<TokenId> chat_tokens(PyEngine& engine, const std::string& body) {
  const Json json = parse_json(body, "messages", std::size_t{1} << 30);
  try {
    const server::Conversation conversation = server::parse_conversation(JsonRef(json, "messages"), body);
    return server::chat_prompt(*engine.model().text, conversation);
  } catch (const server::ApiError& e) {
    fail(ErrorKind::kRequest, "{}", e.what());
  }
}

std::shared_ptr<Request> submit(PyEngine& engine, std::vector<TokenId> prompt, Settings params,
                                std::optional<std::string> kv, bool stream, std::optional<std::int32_t> score,
                                std::shared_ptr<Mailbox> mailbox) {
  PyEngine::Order order{.input = input_of(params, *engine.model().text), .mailbox = std::move(mailbox)};
  GenerationInput& input = order.input;
  input.prompt = std::move(prompt);
  input.method = engine.plan_for(kv, input.kv);
  input.stream = stream;
  input.score_prompt = score;
  return engine.submit(std::move(order));
}

void cancel(Request& request) {
  if (const std::shared_ptr<EngineLoop> loop = request.loop.lock(); loop && request.id) loop->cancel(*request.id);
  request.fail({.kind = FailureKind::kShutdown, .error = ErrorKind::kRequest, .message = "the request was cancelled"});
}

// Waits for news, or for the end; Ctrl-C raises.
void wait(Request& request, bool for_end) {
  for (;;) {
    {
      const Released released;
      if (request.wait_slice(for_end)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::tuple prompt_scores(Request& request) {
  PromptSummary summary = request.prompt();
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<std::int32_t, float>>> top;
  for (PromptScore& score : summary.scores) {
    logprobs.push_back(score.logprob);
    top.emplace_back();
    for (const TokenLogprob& p : score.top) top.back().emplace_back(p.token, p.logprob);
  }
  return nb::make_tuple(floats(std::move(logprobs)), std::move(top));
}

using PageTuples = std::vector<std::tuple<bool, std::int64_t, std::optional<std::int64_t>, std::vector<std::int32_t>>>;

PageTuples kv_events(PyEngine& engine) {
  PageTuples out;
  for (PyEngine::PageNews& n : engine.take_kv_events())
    out.emplace_back(n.stored, n.hash, n.parent, std::move(n.tokens));
  return out;
}

void bind_request(nb::module_& m) {
  nb::class_<AnswerSummary>(m, "AnswerSummary", "Told with the end of an answer.")
      .def_prop_ro("finish_reason", [](const AnswerSummary& s) { return std::string(finish_reason_name(s.reason)); })
      .def_prop_ro("tokens", [](const AnswerSummary& s) { return s.stats.answer_tokens; })
      .def_prop_ro("prefill_seconds", [](const AnswerSummary& s) { return s.stats.prefill_seconds; })
      .def_prop_ro("decode_seconds", [](const AnswerSummary& s) { return s.stats.decode_seconds; })
      .def_prop_ro("kv", [](const AnswerSummary& s) { return s.stats.method; });
  nb::class_<AnswerPiece>(m, "Piece", "What came of one answer since the last look.")
      .def_ro("text", &AnswerPiece::text)
      .def_prop_ro("tokens", [](const AnswerPiece& p) { return scored(p.tokens); })
      .def_ro("end", &AnswerPiece::end)
      .def_prop_ro(
          "page_reads",
          [](const AnswerPiece& p) { return counts(p.reads ? p.reads->pages : std::vector<std::int64_t>()); },
          nb::rv_policy::automatic);
  nb::class_<Request>(m, "Request", "One prompt and its answers.")
      .def("wait", &wait, "for_end"_a, "Waits without the GIL for news or the end; Ctrl-C raises KeyboardInterrupt.")
      .def_prop_ro("ended", &Request::ended)
      .def_prop_ro("number", &Request::number)
      .def("take", &Request::take, "choice"_a, "What came of one answer since the last call.")
      .def(
          "prompt_tokens", [](Request& r) { return std::pair(r.prompt().tokens, r.prompt().cached_tokens); },
          "Tokens of the prompt, and those of them that were cached.")
      .def("prompt_scores", &prompt_scores,
           nb::sig("def prompt_scores(self) -> tuple[numpy.typing.NDArray[numpy.float32], "
                   "list[list[tuple[int, float]]]]"),
           "Log-probabilities of all tokens of the prompt but the first, and the likeliest in their place.")
      .def("cancel", &cancel, "Ends it before the next step.");
  nb::class_<Mailbox>(m, "Mailbox", "Numbers of requests with news, behind a file descriptor for event loops.")
      .def(nb::init<>())
      .def_prop_ro("fd", &Mailbox::fd)
      .def("take", &Mailbox::take);
}

// Members follow their declaration: Python's dictionaries and their texts keep it.
//
// Errors  kOption: not JSON; those of compile_json_schema().
JsonGrammar schema_of(const std::string& text) {
  nlohmann::ordered_json schema;
  try {
    schema = read_exact_json(text, "json_schema");
  } catch (const Error& e) {
    fail(ErrorKind::kOption, "{}", e.what());
  }
  return compile_json_schema(schema, MemberOrder::kDeclared);
}

}  // namespace

ScoredTokens scored(const std::vector<TokenScore>& tokens) {
  ScoredTokens out;
  out.reserve(tokens.size());
  for (const TokenScore& t : tokens) {
    std::vector<std::pair<std::int32_t, float>> top;
    for (const TokenLogprob& p : t.top) top.emplace_back(p.token, p.logprob);
    out.emplace_back(t.token, t.logprob, std::move(top));
  }
  return out;
}

GenerationInput input_of(const Settings& params, const TextSide& text) {
  const SettingsReader p{params};
  GenerationInput input;
  SamplingOptions& s = input.sampling;
  s.temperature = p.get<float>("temperature", 0.0f);
  s.top_k = p.get<int>("top_k", 0);
  s.top_p = p.get<float>("top_p", 1.0f);
  s.min_p = p.get<float>("min_p", 0.0f);
  s.repetition_penalty = p.get<float>("repetition_penalty", 1.0f);
  s.presence_penalty = p.get<float>("presence_penalty", 0.0f);
  s.frequency_penalty = p.get<float>("frequency_penalty", 0.0f);
  s.seed = p.get<std::optional<std::uint64_t>>("seed", {});
  if (p.values.contains("logit_bias")) s.logit_bias = bias_of(nb::cast<nb::dict>(p.values["logit_bias"]));
  input.n = p.get<std::int32_t>("n", 1);
  input.max_tokens = p.get<std::int32_t>("max_tokens", 256);
  input.stop.strings = p.get<std::vector<std::string>>("stop", {});
  input.stop.tokens = p.get<std::vector<std::int32_t>>("stop_token_ids", {});
  input.stop.keep_string = p.get<bool>("include_stop_str_in_output", false);
  input.stop.ignore_end = p.get<bool>("ignore_eos", false);
  input.top_logprobs = p.get<std::int32_t>("logprobs", 0);
  input.priority = -p.get<std::int32_t>("priority", 0);
  if (p.values.contains("speculative")) input.speculation = parse_speculation(p.get<std::string>("speculative", "off"));
  input.count_reads = p.get<bool>("page_reads", false);
  if (const auto schema = p.get<std::optional<std::string>>("json_schema", {})) {
    input.constraint = json_constraint(text.token_trie(), schema_of(*schema));
  }
  return input;
}

void bind_engine(nb::module_& m) {
  bind_request(m);
  nb::class_<ModelInfo>(m, "ModelInfo", "What a model is.")
      .def_ro("name", &ModelInfo::name, "As the file calls it; may be empty.")
      .def_ro("architecture", &ModelInfo::architecture, "\"llama\", \"mistral\", \"qwen2\", \"qwen3\".")
      .def_ro("file_format", &ModelInfo::file_format, "\"GGUF v3\", \"Hugging Face (safetensors)\".")
      .def_ro("chat_family", &ModelInfo::chat_family, "Whose framing of turns is used; \"none\": plain text.")
      .def_ro("context", &ModelInfo::context, "Tokens that the model was made for.")
      .def_ro("vocabulary", &ModelInfo::vocabulary)
      .def_ro("layers", &ModelInfo::layers);
  nb::class_<PyEngine>(m, "Engine", nb::is_weak_referenceable(),
                       "A model and the thread that steps it for many callers.")
      .def(
          "__init__",
          [](PyEngine* self, const std::string& model, Settings options) {
            new (self) PyEngine(settings_of(model, std::move(options)));
          },
          "model"_a, "options"_a)
      .def("close", &PyEngine::close)
      .def_prop_ro("closed", &PyEngine::closed)
      .def_prop_ro("info", [](PyEngine& e) { return e.model().text->info; })
      .def_prop_ro("max_model_len", [](PyEngine& e) { return e.model().engine->options().context; })
      .def_prop_ro("threads", [](PyEngine& e) { return e.model().engine->options().threads; })
      .def_prop_ro("kv_blocks", &PyEngine::kv_blocks, "Blocks of the page pool, of all layers and KV heads.")
      .def_prop_ro("kv_blocks_per_page",
                   [](PyEngine& e) {
                     const KvShape& shape = e.model().engine->pool().shape();
                     return shape.n_layers * shape.n_kv_heads;
                   })
      .def("take_kv_events", &kv_events, "Pages of the prefix cache since the last call: stored, hash, parent, tokens.")
      .def_prop_ro("end_tokens", [](PyEngine& e) { return e.model().end_tokens; })
      .def("tokenize", &tokenize, "text"_a, "special"_a, "bos"_a)
      .def(
          "detokenize",
          [](PyEngine& e, const std::vector<TokenId>& tokens, bool special) {
            return e.model().text->tokenizer->decode(tokens, special);
          },
          "tokens"_a, "special"_a)
      .def("chat_tokens", &chat_tokens, "body"_a, "Of the messages, tools and so on of a chat request's JSON.")
      .def("submit", &submit, "prompt"_a, "params"_a, "kv"_a.none(), "stream"_a, "score"_a.none(), "mailbox"_a.none())
      .def(
          "logits",
          [](PyEngine& e, std::vector<TokenId> prompt, std::int32_t begin, std::int32_t end) {
            const auto vocabulary = static_cast<std::size_t>(e.model().text->info.vocabulary);
            return floats(e.logits(std::move(prompt), begin, end), vocabulary);
          },
          "prompt"_a, "begin"_a, "end"_a);
}

}  // namespace mneme::python
