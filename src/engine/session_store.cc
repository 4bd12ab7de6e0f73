// Sessions that outlive the program.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/engine/session_impl.h"
#include "src/engine/session_store.h"

namespace mneme {
namespace {

void write_kv(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head,
              FunctionRef<void(std::span<const std::byte>)> out) {
  std::vector<KvRun> runs;
  cache.append_runs(layer, kv_head, 0, cache.length(), runs);
  std::vector<std::byte> page(cache.pool().on_device() ? cache.shape().page_bytes() : 0);
  for (const KvRun& run : runs) {
    const std::size_t bytes = static_cast<std::size_t>(run.n_tokens) * cache.shape().token_bytes();
    if (!page.empty()) cache.pool().read(page.data(), run.kv, bytes);
    out({page.empty() ? run.kv : page.data(), bytes});
  }
}

void read_kv(const SessionFile& file, SequenceCache& cache) {
  const KvShape& shape = cache.shape();
  for (std::int32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::int32_t head = 0; head < shape.n_kv_heads; ++head) {
      const std::span<const std::byte> from = file.kv(layer, head);
      for (std::int32_t at = 0; at < cache.length(); at += kPageTokens) {
        const auto offset = static_cast<std::size_t>(at) * shape.token_bytes();
        const auto piece = from.subspan(offset, std::min(shape.page_bytes(), from.size() - offset));
        cache.pool().write(cache.token(layer, head, at), piece.data(), piece.size());
      }
    }
  }
}

// A saved session holds keys and values as full attention makes them.
void expect_exact_prompts(const Plan* plan) {
  if (plan != nullptr && plan->binds_sequence())
    fail(ErrorKind::kUnsupported, "sessions cannot be saved or restored with '{}', which decides how a prompt is read",
         plan->recipe.name);
}

}  // namespace

SavedSession saved_session(const std::filesystem::path& path) {
  const MappedFile bytes(path);
  const SessionContent content =
      SessionFile::parse(bytes.bytes(), path.string(), SessionFile::Check::kWithoutKv).content();
  return {.model_name = content.identity.name,
          .architecture = content.identity.architecture,
          .kv_cache_dtype = std::string(dtype_name(content.identity.kv.dtype)),
          .tokens = static_cast<std::int64_t>(content.tokens.size()),
          .computed_tokens = content.n_computed,
          .document_waits = content.document.has_value()};
}

void save_sequence(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path) {
  const SequenceCache& cache = model.engine->cache(id);
  const auto tokens = model.engine->tokens(id);
  content.identity = model.identity;
  content.tokens.assign(tokens.begin(), tokens.end());
  content.n_computed = cache.length();
  write_session(path, content,
                [&](std::int32_t layer, std::int32_t head, FunctionRef<void(std::span<const std::byte>)> out) {
                  write_kv(cache, layer, head, out);
                });
}

RestoredSequence restore_sequence(const RunningModel& model, const std::filesystem::path& path) {
  const MappedFile bytes(path);
  const SessionFile file = SessionFile::parse(bytes.bytes(), path.string());
  expect_same_model(file.content().identity, model.identity, path.string());
  RestoredSequence restored{.id = {}, .content = file.content()};
  restored.id = model.engine->adopt(restored.content.tokens, restored.content.n_computed,
                                    [&](SequenceCache& cache) { read_kv(file, cache); });
  return restored;
}

void Session::save(const std::filesystem::path& path) const {
  const Impl& s = *impl_;
  expect_exact_prompts(s.model->method.get());
  if (!s.id.valid()) fail(ErrorKind::kRequest, "there is nothing to save yet: the session has no turn");
  save_sequence(*s.model, s.id,
                {.identity = {},
                 .answered = s.answered,
                 .framing = s.framing,
                 .random = s.random,
                 .document = s.document,
                 .tokens = {}},
                path);
}

Session Session::restore(const LanguageModel& model, const std::filesystem::path& path) {
  expect_exact_prompts(model.impl_->method.get());
  RestoredSequence restored = restore_sequence(*model.impl_, path);
  auto impl = std::make_unique<Impl>();
  impl->model = model.impl_;
  impl->answered = restored.content.answered;
  impl->framing = restored.content.framing;
  impl->random = restored.content.random;
  impl->document = std::move(restored.content.document);
  impl->id = restored.id;
  return Session(std::move(impl));
}

}  // namespace mneme
