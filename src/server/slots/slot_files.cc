#include "src/server/slots/slot_files.h"

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/session/session_store.h"

namespace mneme::server {
namespace {

// What `ask` returns or throws on the engine's thread.
template <typename Ask>
auto answer_of(EngineLoop& loop, Ask ask) {
  using Answer = std::invoke_result_t<Ask, SequenceKeeper&>;
  const auto task = std::make_shared<std::packaged_task<Answer(SequenceKeeper&)>>(std::move(ask));
  const auto told = std::make_shared<std::promise<void>>();
  std::future<Answer> answer = task->get_future();
  std::future<void> done = told->get_future();
  loop.call([task, told](SequenceKeeper& keeper) -> std::function<void()> {
    (*task)(keeper);
    return [told] { told->set_value(); };
  });
  try {
    done.get();  // the gauges tell what it did
    return answer.get();
  } catch (const std::future_error&) {
    fail(ErrorKind::kResource, "the server stopped");
  }
}

// A slot serves requests of any method.
void expect_exact_prompts(const SessionContent& content) {
  if (content.reading)
    fail(ErrorKind::kUnsupported, "slots hold no sequences whose prompts a method read its own way ('{}')",
         content.reading->recipe);
}

struct Saved {
  SessionContent content;
  RequestId id;
  std::uint64_t revision = 0;
};

Saved begin(SequenceKeeper& keeper, std::int32_t s) {
  const SequenceKeeper::Slot& slot = keeper.slot(s);
  if (!slot.id.valid()) fail(ErrorKind::kRequest, "slot {} is empty: there is nothing to save", s);
  SessionContent content;
  content.answered = true;
  content.framing = Framing::kRaw;  // clients frame turns themselves: their prompts hold all of it
  const RunningModel& model = keeper.model();
  content = content_of(model, slot.id, std::move(content));
  expect_exact_prompts(content);
  return {.content = std::move(content), .id = slot.id, .revision = model.engine->cache(slot.id).revision()};
}

// A piece of one head, if the slot still has what it had.
std::vector<std::byte> piece(SequenceKeeper& keeper, std::int32_t s, const Saved& saved, std::int32_t layer,
                             std::int32_t kv_head, TokenRange positions) {
  const Engine& engine = *keeper.model().engine;
  if (keeper.slot(s).id != saved.id || engine.cache(saved.id).revision() != saved.revision)
    fail(ErrorKind::kResource, "slot {} changed while it was saved: save it again", s);
  std::vector<std::byte> bytes;
  append_kv(engine.cache(saved.id), layer, kv_head, positions, bytes);
  return bytes;
}

}  // namespace

// What `act` returns. Its errors reach clients: they name the file as the client did, not where the server keeps it.
template <typename Act>
auto SlotFiles::on_file(const std::string& name, Act act) const {
  const std::filesystem::path path = file(name);
  try {
    return act(path);
  } catch (const Error& e) {
    std::string message = e.what();
    const auto replace_all = [&](const std::string& what, std::string_view by) {
      for (std::size_t at = 0; (at = message.find(what, at)) != message.npos; at += by.size())
        message.replace(at, what.size(), by);
    };
    replace_all(path.string(), name);
    replace_all(folder_.string(), "--slot-save-path/");
    throw Error(e.kind(), message);
  }
}

std::filesystem::path SlotFiles::file(const std::string& name) const {
  if (folder_.empty()) {
    fail(ErrorKind::kOption, "slots cannot be saved: the server was started without --slot-save-path");
  }
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > 200 || name.front() == '.' || name.find_first_not_of(kAllowed) != name.npos) {
    fail(ErrorKind::kRequest,
         "filename: expected 1 to 200 letters, digits, dots, underscores and hyphens, not beginning with a dot");
  }
  return folder_ / name;
}

std::int64_t SlotFiles::save(std::int32_t slot, const std::string& name) {
  return on_file(name, [&](const std::filesystem::path& path) { return save_to(path, slot); });
}

// Ranks write their parts at once, between two steps.
std::int64_t SlotFiles::save_by_ranks(const std::filesystem::path& path, std::int32_t slot) {
  return answer_of(loop_, [&](SequenceKeeper& keeper) {
    Saved saved = begin(keeper, slot);
    const std::int64_t n_tokens = saved.content.tokens.size();
    save_sequence(keeper.model(), saved.id, std::move(saved.content), path, Links::kRefused);
    return n_tokens;
  });
}

std::int64_t SlotFiles::save_to(const std::filesystem::path& path, std::int32_t slot) {
  if (loop_.model().engine->ranks() != nullptr) return save_by_ranks(path, slot);
  const Saved saved = answer_of(loop_, [slot](SequenceKeeper& keeper) { return begin(keeper, slot); });
  // A copy of 16 MiB takes a few milliseconds: about as long as the shortest step.
  constexpr std::size_t kPieceBytes = 16 << 20;
  const std::int32_t n = saved.content.n_computed;
  const std::int32_t tokens_a_piece = count32(kPieceBytes / saved.content.identity.kv.token_bytes());
  write_session(
      path, saved.content,
      [&](std::int32_t layer, std::int32_t head, FunctionRef<void(std::span<const std::byte>)> out) {
        for (std::int32_t at = 0; at < n; at += tokens_a_piece) {
          const TokenRange positions{at, std::min(at + tokens_a_piece, n)};
          out(answer_of(loop_,
                        [&](SequenceKeeper& keeper) { return piece(keeper, slot, saved, layer, head, positions); }));
        }
      },
      Links::kRefused);
  return saved.content.tokens.size();
}

std::int64_t SlotFiles::restore(std::int32_t slot, const std::string& name) {
  return on_file(name, [&](const std::filesystem::path& path) {
    answer_of(loop_, [slot](SequenceKeeper& keeper) { return keeper.slot(slot).n_tokens; });  // there is such a slot
    const SavedSequence session(path, 0, 1, Links::kRefused);
    expect_exact_prompts(session.content());
    return answer_of(loop_, [&](SequenceKeeper& keeper) {
      const RunningModel& model = keeper.model();
      const RestoredSequence restored = model.engine->ranks() == nullptr
                                            ? adopt_saved(model, session, name)
                                            : restore_sequence(model, path, Links::kRefused);
      keeper.put(slot, restored);
      return std::ssize(restored.content.tokens);
    });
  });
}

std::int64_t SlotFiles::erase(std::int32_t slot) {
  return answer_of(loop_, [slot](SequenceKeeper& keeper) { return keeper.erase(slot); });
}

}  // namespace mneme::server
