#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/numa.h"
#include "src/engine/kv_method.h"
#include "src/engine/language_model_impl.h"
#include "src/engine/session_identity.h"
#include "src/model/model.h"

namespace mneme {
namespace {

constexpr std::string_view kSeparator = "\n\n\n";  // between document and question, as chat framing has it

// More threads than this are a slip of the finger.
constexpr int kMostThreads = 1024;

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

std::string_view version() {
  return MNEME_VERSION;
}

TextSide::TextSide(const Checkpoint& checkpoint)
    : info(info_of(checkpoint)),
      tokenizer(Tokenizer::make(checkpoint.tokenizer())),
      chat(ChatFormat::detect(*tokenizer)) {
  info.chat_family = std::string(chat_family_name(chat.family()));
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
    prompt.n_question = static_cast<std::int32_t>(tail.size());
    prompt.tokens.insert(prompt.tokens.end(), tail.begin(), tail.end());
    return prompt;
  }
  const ChatFormat::Turn words{.document = turn.document, .question = turn.question, .system = turn.system};
  if (how.question == QuestionPath::kPrefill) return {.tokens = chat.user_turn(words, first), .n_question = 0};
  ChatFormat::SplitTurn split = chat.user_turn_split(words, first);
  Prompt prompt{.tokens = std::move(split.document), .n_question = static_cast<std::int32_t>(split.question.size())};
  prompt.tokens.insert(prompt.tokens.end(), split.question.begin(), split.question.end());
  return prompt;
}

ModelFile::ModelFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->checkpoint = Checkpoint::open(path);
  impl_->text = std::make_unique<TextSide>(*impl_->checkpoint);
}
ModelFile::~ModelFile() = default;
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;

ModelInfo ModelFile::info() const {
  return impl_->text->info;
}
std::vector<std::int32_t> ModelFile::tokenize(std::string_view text, SpecialTokens special) const {
  return impl_->text->tokenize(text, special);
}
std::string ModelFile::detokenize(std::span<const std::int32_t> tokens) const {
  return impl_->text->tokenizer->decode(tokens);
}
std::int64_t ModelFile::count_tokens(const Turn& turn, const AskOptions& options) const {
  return static_cast<std::int64_t>(impl_->text->prompt_of(turn, options, true).tokens.size());
}

LanguageModel::LanguageModel(ModelFile file, const EngineOptions& options, const ProgressFn& progress)
    : impl_(std::make_shared<Impl>()) {
  MNEME_CHECK(file.impl_ != nullptr, "a model file can be started once");
  if (options.threads < 0 || options.threads > kMostThreads) {
    fail(ErrorKind::kOption, "threads: expected 0 (one per CPU) to {}, found {}", kMostThreads, options.threads);
  }
  EngineOptions in_force = options;
  auto pool = make_thread_pool(options.threads, options.pin_threads ? Pinning::kPinned : Pinning::kNone,
                               numa_policy(options.numa));
  in_force.threads = pool->size();
  const CpuContext context{.pool = pool.get(), .rounding = options.deterministic ? Rounding::kFixed : Rounding::kFast};
  impl_->text = std::move(file.impl_->text);
  const std::int64_t made_for = file.impl_->checkpoint->config().max_context;
  impl_->identity = identity_of(*file.impl_->checkpoint, options.context > 0 ? options.context : made_for);
  std::unique_ptr<Model> model =
      Model::load(std::move(file.impl_->checkpoint), {.context = options.context}, context, progress);
  impl_->engine = std::make_unique<Engine>(std::move(model), in_force, std::move(pool));
  impl_->identity.kv = impl_->engine->pool().shape();
  const Recipe recipe = recipe_of(options.kv);
  if (recipe.attend != Attend::kEverything) impl_->method = compile(recipe, impl_->engine->method_shape());
  for (TokenId id = 0; id < impl_->text->tokenizer->vocab_size(); ++id)
    if (impl_->text->tokenizer->is_end(id)) impl_->end_tokens.push_back(id);
}
LanguageModel::LanguageModel(const std::filesystem::path& path, const EngineOptions& options,
                             const ProgressFn& progress)
    : LanguageModel(ModelFile(path), options, progress) {}
LanguageModel::~LanguageModel() = default;
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;

ModelInfo LanguageModel::info() const {
  return impl_->text->info;
}
EngineOptions LanguageModel::options() const {
  return impl_->engine->options();
}
std::vector<std::int32_t> LanguageModel::tokenize(std::string_view text, SpecialTokens special) const {
  return impl_->text->tokenize(text, special);
}
std::string LanguageModel::detokenize(std::span<const std::int32_t> tokens) const {
  return impl_->text->tokenizer->decode(tokens);
}

}  // namespace mneme
