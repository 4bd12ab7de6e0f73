// Sessions that outlive the program.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/engine/request.h"
#include "src/engine/session/session_impl.h"
#include "src/engine/session/session_parts.h"
#include "src/engine/session/session_ranks.h"
#include "src/engine/session/session_store.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"
#include "src/recipes/override.h"

namespace mneme {
namespace {

// Positions of one head whose keys and values are in the file.
std::vector<TokenRange> stored_of(const SessionContent& content, std::int32_t layer, std::int32_t head) {
  if (content.method) return content.method->heads[layer * content.identity.kv.n_kv_heads + head].stored;
  return content.n_computed > 0 ? std::vector<TokenRange>{{0, content.n_computed}} : std::vector<TokenRange>{};
}

void read_kv(const SavedSequence& file, SequenceCache& cache) {
  const KvShape& shape = cache.shape();
  for (std::int32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (std::int32_t head = 0; head < shape.n_kv_heads; ++head) {
      std::span<const std::byte> from = file.kv(layer, head);
      for (const TokenRange& r : stored_of(file.content(), layer, head)) {
        for (std::int32_t at = r.begin; at < r.end;) {
          const std::int32_t n = std::min(r.end - at, kPageTokens - at % kPageTokens);
          const auto piece = from.first(n * shape.token_bytes());
          if (at >= cache.first_page(layer) * kPageTokens)  // not what lies behind a window
            cache.pool().write(cache.token(layer, head, at), piece.data(), piece.size());
          from = from.subspan(piece.size());
          at += n;
        }
      }
    }
  }
}

std::string recipe_text(const Recipe& recipe) {
  return recipe.name + ' ' + override_list(recipe);
}

std::optional<SavedReading> reading_of(const MethodState* method) {
  if (method == nullptr || !method->plan().binds_sequence()) return std::nullopt;
  ByteWriter state;
  method->write(state);
  return SavedReading{.recipe = recipe_text(method->plan().recipe), .state = std::move(state).take()};
}

// Keys and values of a method that decides how prompts are read are no other method's, and it cannot go on with theirs.
void expect_same_reading(const SessionContent& content, const Plan* plan, std::string_view file) {
  const std::string ours = plan != nullptr && plan->binds_sequence() ? recipe_text(plan->recipe) : "";
  if (content.n_computed == 0 && !content.reading) return;  // nothing was read yet
  const std::string& theirs = content.reading ? content.reading->recipe : ours;
  if (ours == theirs && (content.reading || ours.empty())) return;
  const auto named = [](const std::string& text) { return text.empty() ? "exactly" : fmt::format("by '{}'", text); };
  fail(ErrorKind::kRequest, "{}: its prompts were read {}, and this model reads them {}: start it with the same method",
       file, named(content.reading ? theirs : ""), named(ours));
}

// What the session had dropped: the ranks of a cache that holds everything are its positions.
void drop_again(const SessionContent& content, SequenceCache& cache, std::string_view file) {
  if (!content.method) return;
  const KvWindows& windows = cache.pool().windows();
  const std::int32_t n = content.n_computed;
  std::int32_t released = 0;
  for (std::int32_t layer = 0; layer < cache.shape().n_layers; ++layer) {
    for (std::int32_t head = 0; head < cache.shape().n_kv_heads; ++head) {
      const std::vector<TokenRange> stored = stored_of(content, layer, head);
      if (!windows.has(layer)) {
        cache.keep(layer, head, stored);
        continue;
      }
      const std::int32_t begin = stored.empty() ? n : stored.front().begin;
      const std::int32_t pages = pages_of(begin);
      if (n > 0 && (stored.size() != 1 || stored.front().end != n || pages > windows.first_page(n)))
        fail(ErrorKind::kFormat, "{}: layer {}: expected the {} tokens of its window, found fewer", file, layer,
             windows.tokens);
      released = std::max(released, pages);
    }
  }
  cache.release_first(released, true);
}

std::optional<SavedMethod> method_of(const SequenceCache& cache, const MethodState* method) {
  const std::int32_t n_kv = cache.shape().n_kv_heads;
  SavedMethod saved;
  bool any = cache.dropped() || cache.released_pages() > 0;
  for (std::int32_t layer = 0; layer < cache.shape().n_layers; ++layer) {
    const MethodState::Layer* state = method == nullptr ? nullptr : &method->layer(layer);
    saved.budgets.push_back(state == nullptr ? 0 : state->budget);
    any = any || saved.budgets.back() > 0;
    for (std::int32_t h = 0; h < n_kv; ++h) {
      SavedHead& head = saved.heads.emplace_back();
      head.stored = cache.stored(layer, h);
      if (state == nullptr || state->mass.empty()) continue;
      // Sums of tokens that were computed since the method looked last are 0.
      head.mass = state->mass[h];
      head.mass.resize(cache.n_stored(layer, h), 0.0f);
      any = any || !head.mass.empty();
    }
  }
  return any ? std::optional(std::move(saved)) : std::nullopt;
}

// The state that the same method had, where there is anything in it that keys do not tell.
std::unique_ptr<MethodState> state_of(const SessionContent& content, const std::shared_ptr<const Plan>& plan,
                                      std::string_view file) {
  if ((!content.method && !content.reading) || plan == nullptr) return nullptr;
  auto state = std::make_unique<MethodState>(plan);
  if (content.reading) {
    ByteReader in(content.reading->state, file);
    state->read(in, content.n_computed);
    if (in.remaining() != 0)
      fail(ErrorKind::kFormat, "{}: {} bytes are left over in section reading: the file is damaged", file,
           in.remaining());
  }
  if (!content.method) return state;
  const std::int32_t n_kv = content.identity.kv.n_kv_heads;
  for (std::int32_t layer = 0; layer < content.identity.kv.n_layers; ++layer) {
    MethodState::Layer& to = state->layer(layer);
    if (plan->norm) to.budget = content.method->budgets[layer];
    for (std::size_t h = 0; h < to.mass.size(); ++h) to.mass[h] = content.method->heads[(layer * n_kv) + h].mass;
  }
  return state;
}

}  // namespace

SavedSession saved_session(const std::filesystem::path& path) {
  std::filesystem::path at = path;
  MappedFile bytes(at);
  if (is_manifest(bytes.bytes())) {
    at = path.parent_path() / parse_manifest(bytes.bytes(), path.string()).parts.front().file;
    bytes = MappedFile(at);
  }
  const SessionContent content =
      SessionFile::parse(bytes.bytes(), at.string(), SessionFile::Check::kWithoutKv).content();
  return {.model_name = content.identity.name,
          .architecture = content.identity.architecture,
          .kv_cache_dtype = parse_kv_dtype(dtype_name(content.identity.kv.dtype)),
          .tokens = std::ssize(content.tokens),
          .computed_tokens = content.n_computed,
          .document_waits = content.document.has_value()};
}

SessionContent content_of(const RunningModel& model, RequestId id, SessionContent content) {
  const SequenceCache& cache = model.engine->cache(id);
  const auto tokens = model.engine->tokens(id);
  content.identity = model.identity;
  content.tokens.assign(tokens.begin(), tokens.end());
  // Layers with a state in place of keys and values cannot go on without it, and it is not in the file: whoever restores
  // the session computes its tokens again.
  if (cache.states().any()) return content;
  content.n_computed = cache.length();
  content.method = method_of(cache, model.engine->method(id));
  content.reading = reading_of(model.engine->method(id));
  return content;
}

void append_kv(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, TokenRange positions,
               std::vector<std::byte>& out) {
  std::vector<KvRun> runs;
  cache.append_runs(layer, kv_head, positions.begin, positions.end, runs);
  for (const KvRun& run : runs) {
    const std::size_t bytes = run.n_tokens * cache.shape().token_bytes();
    const std::size_t at = out.size();
    out.resize(at + bytes);
    cache.pool().read(out.data() + at, run.kv, bytes);
  }
}

void write_part(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path,
                Links links) {
  const SequenceCache& cache = model.engine->cache(id);
  constexpr std::int32_t kTokens = 1024;
  std::vector<std::byte> piece;
  content = content_of(model, id, std::move(content));
  const std::int32_t n = content.n_computed;
  const auto kv = [&](std::int32_t layer, std::int32_t head, FunctionRef<void(std::span<const std::byte>)> out) {
    for (std::int32_t at = 0; at < n; at += kTokens) {
      piece.clear();
      append_kv(cache, layer, head, {at, std::min(at + kTokens, n)}, piece);
      out(piece);
    }
  };
  write_session(path, content, kv, links);
}

void save_sequence(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path,
                   Links links) {
  model.engine->ranks() == nullptr ? write_part(model, id, std::move(content), path, links)
                                   : save_by_ranks(model, id, std::move(content), path, links);
}

RestoredSequence restore_sequence(const RunningModel& model, const std::filesystem::path& path, Links links) {
  return model.engine->ranks() == nullptr ? adopt_saved(model, SavedSequence(path, 0, 1, links), path.string())
                                          : restore_by_ranks(model, path, links);
}

RestoredSequence adopt_saved(const RunningModel& model, const SavedSequence& file, std::string_view name) {
  expect_same_model(file.content().identity, model.identity, name);
  expect_same_reading(file.content(), model.method.get(), name);
  RestoredSequence restored{.id = {}, .content = file.content()};
  restored.id = model.engine->adopt(
      restored.content.tokens, restored.content.n_computed,
      [&](SequenceCache& cache) {
        read_kv(file, cache);
        drop_again(restored.content, cache, name);
        check_dropped(cache, model.method.get());
      },
      state_of(restored.content, model.method, name));
  return restored;
}

void Session::save(const std::filesystem::path& path) const {
  const Impl& s = *impl_;
  s.expect_idle();
  if (!s.id.valid()) fail(ErrorKind::kRequest, "there is nothing to save yet: the session has no turn");
  const SessionContent content{.identity = {},
                               .answered = s.answered,
                               .framing = s.framing,
                               .random = s.random,
                               .document = s.document,
                               .tokens = {}};
  s.model->loop->exclusive([&](Engine&) { save_sequence(*s.model, s.id, content, path); });
}

Session Session::restore(const LanguageModel& model, const std::filesystem::path& path) {
  RestoredSequence restored;
  model.impl_->loop->exclusive([&](Engine&) { restored = restore_sequence(*model.impl_, path); });
  auto impl = std::make_shared<Impl>(model.impl_);
  impl->last_method = impl->method;
  impl->answered = restored.content.answered;
  impl->framing = restored.content.framing;
  impl->random = restored.content.random;
  impl->document = std::move(restored.content.document);
  impl->id = restored.id;
  return Session(std::move(impl));
}

}  // namespace mneme
