// A session on disk: writing one, and reading what may be one. docs/design/sessions.md has the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/mneme.h"
#include "src/base/atomic_file.h"
#include "src/base/function_ref.h"
#include "src/kv/page_pool.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

// What has to agree between a saved session and the model that goes on with it.
struct SessionIdentity {
  std::string architecture;  // "llama"
  std::string name;          // of the model, for messages only
  std::int64_t vocab = 0;
  std::uint64_t weights = 0;    // hash of configuration, tensor table and samples of every tensor
  std::uint64_t tokenizer = 0;  // hash of vocabulary, merges, template
  std::uint64_t rope = 0;       // hash of how keys were rotated
  KvShape kv;
};

// A request's random numbers: the seed, and how many were drawn.
struct RandomPosition {
  std::uint64_t seed = 0, draws = 0;
  bool operator==(const RandomPosition&) const = default;
};

// What is left of one head's tokens, and what they are worth to a method.
struct SavedHead {
  std::vector<TokenRange> stored;  // positions, ascending
  std::vector<float> mass;         // attention received, one a stored token; or none
  bool operator==(const SavedHead&) const = default;
};

// What a method did to a sequence that its keys and values do not tell.
struct SavedMethod {
  std::vector<std::int32_t> budgets;  // by layer; 0: none was set
  std::vector<SavedHead> heads;       // by layer and KV head
  bool operator==(const SavedMethod&) const = default;
};

// A method that decides how prompts are read: the keys and values are its own.
struct SavedReading {
  std::string recipe;            // "actqkv budget=512,...": all of its settings
  std::vector<std::byte> state;  // MethodState::write
  bool operator==(const SavedReading&) const = default;
};

// A session but for its keys and values.
struct SessionContent {
  SessionIdentity identity;
  bool answered = false;                 // the sequence ends with an answer
  Framing framing = Framing::kChat;      // of the last turn
  std::optional<RandomPosition> random;  // of the last turn that drew
  std::optional<Turn> document;          // read, and waiting for its question
  std::vector<std::int32_t> tokens;
  std::int32_t n_computed = 0;  // tokens at the front whose keys and values are there, but for those that were dropped
  std::optional<SavedMethod> method;
  std::optional<SavedReading> reading;

  // Of one head.
  std::int32_t n_stored(std::int32_t layer, std::int32_t kv_head) const;
};

// Calls `out` with the n_stored pairs [K | V] of one layer and KV head, in one piece or several.
using KvSource =
    FunctionRef<void(std::int32_t layer, std::int32_t kv_head, FunctionRef<void(std::span<const std::byte>)> out)>;

// Errors  kFile. A file that stands at `path` is replaced at the end, or stays as it is.
void write_session(const std::filesystem::path& path, const SessionContent& content, const KvSource& kv,
                   Links links = Links::kFollowed);

// Where things are; the reader takes nothing else.
struct SessionLayout {
  static constexpr std::string_view kMagic = "MNEMESES";
  // Version 1 has neither section `method` nor `reading`, version 2 no `reading`: the lowest that says everything is
  // what is written.
  static constexpr std::uint32_t kVersion = 3, kVersionWithoutReading = 2, kVersionWithoutMethod = 1;
  enum Section : std::size_t { kModel, kState, kDocument, kTokens, kKv, kMethod, kReading, kSections };
  struct Entry {
    std::uint64_t offset, bytes, checksum;
  };
  static constexpr std::size_t kEntries = 24;  // after magic, version, number of sections, bytes of the file
  static constexpr std::size_t n_sections(std::uint32_t version) {
    return version == kVersionWithoutMethod ? kMethod : version == kVersionWithoutReading ? kReading : kSections;
  }
  static constexpr std::size_t header_checksum(std::uint32_t version) {
    return kEntries + n_sections(version) * sizeof(Entry);
  }
  static constexpr std::size_t header(std::uint32_t version) { return header_checksum(version) + 8; }
  static constexpr std::size_t kAlignment = 64;  // of sections; zeros between them
};
// XXH3, 64 bits, seed 0.
std::uint64_t session_checksum(std::span<const std::byte> bytes);

class SessionFile {
 public:
  // How much is checked: kEverything; or all but the checksum of keys and values, for a look at what is in it.
  enum class Check { kEverything, kWithoutKv };

  // The bytes stay the caller's and outlive the object. `name` is the file's, for messages.
  //
  // Errors  kFormat: not a session, truncated, damaged, contradicting itself. kUnsupported: of another version.
  static SessionFile parse(std::span<const std::byte> bytes, std::string_view name, Check check = Check::kEverything);

  const SessionContent& content() const { return content_; }
  // n_stored pairs [K | V].
  std::span<const std::byte> kv(std::int32_t layer, std::int32_t kv_head) const;

 private:
  SessionContent content_;
  std::span<const std::byte> kv_;
  std::vector<std::size_t> first_;  // with a method: where a head's pairs begin in kv_
};

// Errors  kRequest: the session is another model's, or another's keys and values; the first difference is named.
void expect_same_model(const SessionIdentity& saved, const SessionIdentity& running, std::string_view file);

}  // namespace mneme
