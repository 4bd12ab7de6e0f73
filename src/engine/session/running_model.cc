#include "src/engine/session/running_model.h"
#include "src/engine/forward_backend.h"

#include <utility>

#include "src/base/error.h"
#include "src/base/numa.h"
#include "src/base/size32.h"
#include "src/engine/kv_method.h"
#include "src/engine/session/session_identity.h"
#include "src/engine/speculation/speculation.h"
#include "src/model/model.h"
#include "src/text/chat/marked_span.h"

namespace mneme {
namespace {

constexpr std::string_view kSeparator = "\n\n\n";  // between document and question, as chat framing has it

// More threads than this are a slip of the finger.
constexpr int kMaxThreads = 1024;

ModelInfo info_of(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  return {.name = c.name,
          .architecture = std::string(architecture_name(c.architecture)),
          .file_format = std::string(checkpoint.format()),
          .chat_family = "",
          .context = c.max_context,
          .vocabulary = c.vocab,
          .layers = c.n_layers};
}

}  // namespace

std::shared_ptr<const TokenTrie> TextSide::token_trie() const {
  std::call_once(trie_made_, [this] { trie_ = std::make_shared<const TokenTrie>(*tokenizer); });
  return trie_;
}

TextSide::TextSide(const Checkpoint& checkpoint)
    : info(info_of(checkpoint)),
      tokenizer(Tokenizer::make(checkpoint.tokenizer())),
      chat(ChatFormat::detect(*tokenizer)) {
  info.chat_family = std::string(chat.name());
}

void TextSide::set_chat_template(std::string source) {
  chat = ChatFormat::with_template(*tokenizer, std::move(source));
  info.chat_family = std::string(chat.name());
}

std::vector<TokenId> TextSide::tokenize(std::string_view text, SpecialTokens special) const {
  return tokenizer->encode(text, {.parse_special = special == SpecialTokens::kParsed, .add_bos = false});
}

TextSide::Prompt TextSide::prompt_of(const Turn& turn, const AskOptions& how, bool first) const {
  if (turn.document.empty() && turn.question.empty()) {
    fail(ErrorKind::kRequest, "the prompt is empty: expected a document, a question, or both");
  }
  if (how.framing == Framing::kRaw) {
    EncodeOptions options{.parse_special = how.special == SpecialTokens::kParsed,
                          .add_bos = first && tokenizer->adds_bos(),
                          .continues = !first};
    std::string text = turn.system + turn.document;
    std::string question = (turn.document.empty() ? "" : kSeparator.data()) + turn.question;
    if (turn.question.empty()) question.clear();
    Prompt prompt;
    if (how.question == QuestionPath::kPrefill) {
      prompt.tokens = tokenizer->encode(text + question, options);
      return prompt;
    }
    prompt.tokens = tokenizer->encode(text, options);
    options.add_bos = false;
    options.continues = options.continues || !text.empty();
    const std::vector<TokenId> tail = tokenizer->encode(question, options);
    prompt.n_question = size32(tail);
    prompt.tokens.insert(prompt.tokens.end(), tail.begin(), tail.end());
    return prompt;
  }
  const ChatFormat::Turn words{.document = turn.document, .question = turn.question, .system = turn.system};
  if (how.question == QuestionPath::kPrefill) return {.tokens = chat.user_turn(words, first), .n_question = 0};
  ChatFormat::SplitTurn split = chat.user_turn_split(words, first);
  Prompt prompt{.tokens = std::move(split.document), .n_question = size32(split.question)};
  prompt.tokens.insert(prompt.tokens.end(), split.question.begin(), split.question.end());
  return prompt;
}

std::pair<std::int32_t, std::int32_t> TextSide::question_span(const Turn& turn, const AskOptions& how, bool first,
                                                              std::span<const TokenId> prompt) const {
  if (!how.question_span) return {0, 0};
  const auto [begin, end] = *how.question_span;
  Turn other = turn;
  std::string& text = other.document.empty() ? other.question : other.document;
  if (begin >= end || end > text.size())
    fail(ErrorKind::kRequest, "question_span: expected bytes of a text of {}, found {} to {}", text.size(), begin, end);
  text.replace(begin, end - begin, kOtherText);
  return differing_span(prompt, prompt_of(other, how, first).tokens);
}

namespace {

std::unique_ptr<Engine> engine_of(std::unique_ptr<Checkpoint> checkpoint, const EngineOptions& options,
                                  std::unique_ptr<ThreadPool> pool, const ProgressFn& progress) {
  const CpuContext context{.pool = pool.get(), .rounding = options.deterministic ? Rounding::kFixed : Rounding::kFast};
  std::unique_ptr<Model> model = Model::load(std::move(checkpoint), {.context = options.context}, context, progress);
  return std::make_unique<Engine>(std::move(model), options, std::move(pool));
}

}  // namespace

RunningModel start_model(std::unique_ptr<Checkpoint> checkpoint, std::unique_ptr<TextSide> text,
                         const EngineOptions& options, const ProgressFn& progress, const RankSetup& ranks) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    fail(ErrorKind::kOption, "threads: expected 0 (one per CPU) to {}, found {}", kMaxThreads, options.threads);
  }
  check_device_options(options);
  const bool alone = ranks.world == nullptr;
  if (!alone && options.speculation.on())
    fail(ErrorKind::kOption, "speculative {}: expected one rank, found several that share the model; leave it out",
         speculation_text(options.speculation));
  EngineOptions in_force = alone ? options : options_of_leader(*ranks.world, options);
  auto pool = make_thread_pool(options.threads, options.pin_threads ? Pinning::kPinned : Pinning::kNone, options.numa);
  in_force.threads = pool->size();
  RunningModel running;
  running.text = text ? std::move(text) : std::make_unique<TextSide>(*checkpoint);
  const std::int64_t made_for = checkpoint->config().max_context;
  running.identity = identity_of(*checkpoint, in_force.context > 0 ? in_force.context : made_for);
  running.engine =
      alone ? engine_of(std::move(checkpoint), in_force, std::move(pool), progress)
            : rank_engine(ranks, std::move(checkpoint), running.identity, in_force, std::move(pool), progress);
  running.identity.kv = running.engine->pool().shape();
  running.plans = std::make_unique<PlanCache>(running.engine->method_shape());
  KvMethodOptions kv = in_force.kv;
  const PagePool& pages = running.engine->pool();
  if (kv.method == kAutoMethod) kv.method = auto_method(pages.on_device(), pages.in_host_memory());
  running.method = running.plans->plan_for(recipe_of(kv));
  check_speculation(*running.engine, running.method.get());
  running.end_tokens = running.text->tokenizer->end_tokens();
  return running;
}

}  // namespace mneme
