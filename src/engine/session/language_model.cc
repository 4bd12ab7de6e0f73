#include <utility>

#include "src/base/check.h"
#include "src/engine/session/language_model_impl.h"

namespace mneme {

std::string_view version() {
  return MNEME_VERSION;
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
void ModelFile::set_chat_template(std::string text) {
  impl_->text->set_chat_template(std::move(text));
}
std::vector<std::int32_t> ModelFile::tokenize(std::string_view text, SpecialTokens special) const {
  return impl_->text->tokenize(text, special);
}
std::string ModelFile::detokenize(std::span<const std::int32_t> tokens) const {
  return impl_->text->tokenizer->decode(tokens);
}
std::int64_t ModelFile::count_tokens(const Turn& turn, const AskOptions& options) const {
  return impl_->text->prompt_of(turn, options, true).tokens.size();
}
PreparedTurn ModelFile::prepare(Turn turn, AskOptions options) const {
  TextSide::Prompt prompt = impl_->text->prompt_of(turn, options, true);
  return PreparedTurn(std::make_unique<const PreparedTurn::Impl>(PreparedTurn::Impl{
      .turn = std::move(turn), .how = std::move(options), .text = impl_->text.get(), .prompt = std::move(prompt)}));
}

PreparedTurn::PreparedTurn(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
PreparedTurn::~PreparedTurn() = default;
PreparedTurn::PreparedTurn(PreparedTurn&&) noexcept = default;
PreparedTurn& PreparedTurn::operator=(PreparedTurn&&) noexcept = default;

std::int64_t PreparedTurn::n_tokens() const {
  return impl_->prompt.tokens.size();
}

LanguageModel::LanguageModel(ModelFile file, const EngineOptions& options, const ProgressFn& progress) {
  MNEME_CHECK(file.impl_ != nullptr, "a model file can be started once");
  impl_ = std::make_shared<Impl>(
      start_model(std::move(file.impl_->checkpoint), std::move(file.impl_->text), options, progress));
}
LanguageModel::LanguageModel(const std::filesystem::path& path, const EngineOptions& options,
                             const ProgressFn& progress)
    : LanguageModel(ModelFile(path), options, progress) {}
LanguageModel::LanguageModel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
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

LanguageModel LanguageModelAccess::make(RunningModel model) {
  return LanguageModel(std::make_shared<LanguageModel::Impl>(std::move(model)));
}
SharedModel& LanguageModelAccess::shared(const LanguageModel& model) {
  return *model.impl_;
}

}  // namespace mneme
