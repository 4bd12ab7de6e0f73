#include "src/engine/session/session_ranks.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "src/base/atomic_file.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"
#include "src/engine/ranks/rank_engine.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

// What happens on every rank or on none: an error of one is the leader's, and the others go on.
class Together {
 public:
  explicit Together(RankLink& link) : link_(link) {}
  // Errors  RanksStopped.
  void attempt(FunctionRef<void()> act) {
    try {
      act();
    } catch (const RanksStopped&) {
      throw;
    } catch (const Error& e) {
      error_ = e;
    }
    all_did_ = link_.least(error_ ? 0 : 1) == 1;
  }
  bool all_did() const { return all_did_; }
  // The leader's. Errors  its own, or that of another rank.
  void expect_all(std::string_view what) const {
    if (error_) throw Error(*error_);
    if (!all_did_) fail(ErrorKind::kFile, "{}: another rank failed", what);
  }

 private:
  RankLink& link_;
  std::optional<Error> error_;
  bool all_did_ = false;
};

std::string part_name(const fs::path& path, std::uint64_t session, int rank, int size) {
  return fmt::format("{}.{:016x}.rank{}of{}", path.filename().string(), session, rank, size);
}

void expect_heads(const RankLink& link) {
  if (link.split() != RankSplit::kHeads)
    fail(ErrorKind::kUnsupported, "sessions are not saved or restored with --pipeline-parallel-size yet");
}

struct Saving {
  RequestId id;
  std::uint64_t session = 0;  // names the parts
  fs::path path;
  Links links;
};

// This rank's part, under its last name; the stamps of all ranks. Removed where another rank failed.
std::vector<std::uint64_t> save_part(const RunningModel& model, const Saving& saving, SessionContent content,
                                     Together& together) {
  RankLink& link = *model.engine->ranks();
  Collective& ranks = link.ranks();
  const fs::path at = saving.path.parent_path() / part_name(saving.path, saving.session, ranks.rank(), ranks.size());
  std::uint64_t stamp = 0;
  together.attempt([&] {
    write_part(model, saving.id, std::move(content), at, saving.links);
    stamp = session_stamp(MappedFile(at, saving.links).bytes());
  });
  std::error_code ignored;
  if (!together.all_did()) fs::remove(at, ignored);
  std::vector<std::uint64_t> stamps(ranks.size());
  ranks.all_gather(std::as_bytes(std::span(&stamp, 1)), std::as_writable_bytes(std::span(stamps)));
  return stamps;
}

// Parts of the session that stood there before.
std::vector<fs::path> earlier_parts(const fs::path& path, Links links) {
  std::vector<fs::path> out;
  try {
    const MappedFile file(path, links);
    if (is_manifest(file.bytes()))
      for (const SessionManifest::Part& part : parse_manifest(file.bytes(), path.string()).parts)
        out.push_back(path.parent_path() / part.file);
  } catch (const Error&) {  // none
  }
  return out;
}

RestoredSequence restore_part(const RunningModel& model, const fs::path& path, Links links, std::string_view what) {
  RankLink& link = *model.engine->ranks();
  Together reads(link), adopts(link);
  std::optional<SavedSequence> saved;
  reads.attempt([&] {
    saved.emplace(path, link.ranks().rank(), link.ranks().size(), links);
    expect_same_model(saved->content().identity, model.identity, path.string());
  });
  if (link.leads()) reads.expect_all(what);
  if (!reads.all_did()) return {};
  RestoredSequence restored;
  adopts.attempt([&] { restored = adopt_saved(model, *saved, path.string()); });
  if (!adopts.all_did() && restored.id.valid()) {  // some have it and others have not
    link.ranks().abort("a session was restored on some ranks alone");
  }
  if (link.leads()) adopts.expect_all(what);
  return restored;
}

}  // namespace

void save_by_ranks(const RunningModel& model, RequestId id, SessionContent content, const fs::path& path, Links links) {
  RankLink& link = *model.engine->ranks();
  expect_heads(link);
  const auto tokens = model.engine->tokens(id);
  const std::uint64_t session =
      session_checksum(std::as_bytes(tokens)) ^ std::random_device{}();  // saved again: others
  const Saving saving{.id = id, .session = session, .path = fs::absolute(path), .links = links};
  const std::vector<fs::path> earlier = earlier_parts(saving.path, links);
  link.call(RankCall::kSave, link.compares_room(), [&](ByteWriter& out) {
    out.put(id.value);
    out.put(session);
    out.put(underlying(links));
    out.put(saving.path.string());
  });
  Together together(link);
  const std::vector<std::uint64_t> stamps = save_part(model, saving, std::move(content), together);
  together.expect_all(path.string());
  SessionManifest manifest;
  const int size = link.ranks().size();
  for (int r = 0; r < size; ++r)
    manifest.parts.push_back({.stamp = stamps[r], .file = part_name(saving.path, session, r, size)});
  const std::string text = manifest_text(manifest);
  AtomicFile file(saving.path, links);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
  std::error_code ignored;
  for (const fs::path& part : earlier)
    if (std::none_of(manifest.parts.begin(), manifest.parts.end(),
                     [&](const SessionManifest::Part& p) { return p.file == part.filename(); }))
      fs::remove(part, ignored);
}

RestoredSequence restore_by_ranks(const RunningModel& model, const fs::path& path, Links links) {
  const fs::path at = fs::absolute(path);
  RankLink& link = *model.engine->ranks();
  expect_heads(link);
  link.call(RankCall::kRestore, true, [&](ByteWriter& out) {
    out.put(underlying(links));
    out.put(at.string());
  });
  return restore_part(model, at, links, path.string());
}

void follow(const RunningModel& model, const DiskCalls& disk) {
  const auto other = [&](std::uint8_t call, std::span<const std::byte> bytes) {
    ByteReader in(bytes, "a call of rank 0");
    if (call >= underlying(RankCall::kDiskStore)) {
      MNEME_CHECK(disk, "pages on a disk, in a program that has none");
      return disk(static_cast<RankCall>(call), in);
    }
    if (call == underlying(RankCall::kRestore)) {
      const auto links = static_cast<Links>(in.read<std::uint8_t>("links"));
      restore_part(model, std::string(in.string("a path")), links, "");
      return;
    }
    Saving saving{.id = RequestId(in.read<std::int64_t>("a request")), .path = {}, .links = Links::kFollowed};
    saving.session = in.read<std::uint64_t>("a session");
    saving.links = static_cast<Links>(in.read<std::uint8_t>("links"));
    saving.path = std::string(in.string("a path"));
    Together together(*model.engine->ranks());
    save_part(model, saving, {}, together);
  };
  while (repeat_next_call(*model.engine, other)) {
  }
}

}  // namespace mneme
