// A leader and its followers: rank 0 has server, scheduler, samplers and grammars; every other rank has an engine that
// repeats rank 0's calls, in the same order, over the pages of its own heads.
//
//   leader      start, cancel, ...          call ─> all
//               step                        call ─> all ── plan ── forward (collectives) ── sample ── tokens ─> all
//   followers   next_call, repeat ...       step: the same plan, the same forward, the leader's tokens
//
// What depends on a clock or on arrival is the leader's and goes with its calls: which request comes when, a step's
// prompt tokens (EngineOptions::inter_token_ms), sampled tokens. What follows from the calls is computed by every rank:
// schedules, evictions, ends of answers. Where ranks may have unlike numbers of free blocks (a method has dropped tokens
// by head), calls say so, and the ranks decide by the rank that has the least.
//
// Errors   kDevice, as Collective's.
// Threads  the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/function_ref.h"
#include "src/engine/engine.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"
#include "src/parallel/collective.h"

namespace mneme {

enum class RankCall : std::uint8_t {
  kStart,
  kTakePrefix,
  kHold,
  kUnhold,
  kCancel,
  kStop,
  kAttach,
  kAdoptPrefix,
  kStep,
  kSave,  // of a session: session_ranks.h
  kRestore,
  kDiskStore,  // pages of the disk under the prefix cache: engine/loop/disk_follower.h
  kDiskLoad,
  kDiskFill,
  kDiskDrop,
  kEnd,  // there are no more
};

// What requests are, as bytes. Plans go as their recipes: a plan that a follower knows stays the same object, as
// sequences share an index only under one plan. What only samples (constraint, seed, bias) stays with the leader.
class RankRequests {
 public:
  void write(const RequestInput& input, ByteWriter& out);
  using Shape = FunctionRef<MethodShape()>;  // what recipes are compiled for
  RequestInput read(ByteReader& in, Shape shape, bool without_dense_layers);
  void write_plan(const std::shared_ptr<const Plan>& plan, ByteWriter& out);
  // A stage behind the first has none of the dense layers: compile() has seen that the first one has them.
  std::shared_ptr<const Plan> read_plan(ByteReader& in, Shape shape, bool without_dense_layers);

 private:
  std::map<std::weak_ptr<const Plan>, std::int64_t, std::owner_less<>> ids_;  // the leader's
  std::unordered_map<std::int64_t, std::weak_ptr<const Plan>> plans_;         // a follower's
  std::int64_t next_id_ = 1;
};

class RankLink {
 public:
  // `ranks` outlives the link.
  explicit RankLink(Collective& ranks, RankSplit split = RankSplit::kHeads) : ranks_(ranks), split_(split) {}

  RankSplit split() const { return split_; }

  bool leads() const { return ranks_.rank() == 0; }
  Collective& ranks() const { return ranks_; }

  // ---- the leader's
  // Tells all followers. `room_differs`: see compares_room().
  void call(RankCall call, bool room_differs, FunctionRef<void(ByteWriter&)> arguments);

  // ---- a follower's
  // Waits as long as the leader lives.
  struct Call {
    RankCall call;
    std::vector<std::byte> arguments;
  };
  Call next_call();
  void set_prompt_limit(std::int32_t tokens) { prompt_limit_ = tokens; }
  std::int32_t prompt_limit() const { return prompt_limit_; }

  // ---- every rank's, within the same call
  // The leader's tokens.
  void share(std::span<std::int32_t> tokens);
  // Whether the ranks' free blocks may differ in this call.
  bool compares_room() const { return compares_room_; }
  // Whether all ranks say so; where room is not compared they all say the same.
  bool all(bool mine);
  // Of each request the most blocks that a rank needs, and the fewest that are free; in pages of all heads, as ranks
  // have unlike numbers of them. Where room is not compared nothing changes.
  void compare_room(std::span<RequestView> views, std::int64_t& free_blocks, std::int64_t blocks_per_page);
  std::int64_t least(std::int64_t mine);

  RankRequests& requests() { return requests_; }

 private:
  Collective& ranks_;
  RankSplit split_;
  RankRequests requests_;
  bool compares_room_ = false;
  std::int32_t prompt_limit_ = 0;
};

}  // namespace mneme
