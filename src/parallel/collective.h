// What the ranks of a model exchange. Every rank makes the same calls in the same order, with the same sizes.
//
//   all_reduce   [n] f32 becomes the sum over the ranks, added in the order of the ranks: the same bits on every rank
//   all_gather   [size, n] bytes from [n] of each rank, in the order of the ranks
//   broadcast    [n] bytes of `root`
//   barrier      returns when every rank has arrived
//
// Errors   kDevice (all calls): a rank ended, or did not arrive in time; ranks that call different things; abort(). From
//          then on every call of every rank fails: no rank waits for ever. With Patience::kWhileTheyLive there is no
//          deadline: for what an idle leader says next, and for loading weights.
// Threads  one at a time for each rank; abort() from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mneme/error.h"

namespace mneme {

// The other ranks ended, failed or did not answer: what every call throws from then on.
class RanksStopped : public Error {
 public:
  explicit RanksStopped(const std::string& why) : Error(ErrorKind::kDevice, "the ranks stopped: " + why) {}
};

enum class Patience : std::uint8_t { kDeadline, kWhileTheyLive };

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce(std::span<float> values) = 0;
  virtual void all_gather(std::span<const std::byte> part, std::span<std::byte> out) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root, Patience patience) = 0;
  void broadcast(std::span<std::byte> bytes, int root) { broadcast(bytes, root, Patience::kDeadline); }
  virtual void barrier(Patience patience) = 0;
  void barrier() { barrier(Patience::kDeadline); }
  virtual void abort(std::string_view why) noexcept = 0;
  // Why calls fail from now on; empty: they do not, and every rank lives. From any thread.
  virtual std::string failure() = 0;
};

// Errors  kDevice: the ranks have not the same `value`, as they must; the message says of what. Other ranks fail too.
void expect_agreement(Collective& ranks, std::string_view what, std::uint64_t value);

// What of `n` equal parts rank `rank` of `size` has: [first, end).
//
// Requires  size divides n.
struct RankRange {
  std::int64_t first = 0, end = 0;
  std::int64_t size() const { return end - first; }
};
RankRange rank_range(std::int64_t n, int rank, int size);

}  // namespace mneme
