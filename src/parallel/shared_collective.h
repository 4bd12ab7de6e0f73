// Collectives over memory that the ranks share: threads of one process, or processes. The specification of the others:
// values go through one buffer a rank, and every rank adds them up in the order of the ranks.
//
// A wait ends when the others come, when one of them ended or aborted, or after Options::seconds; whoever finds that out
// aborts for all.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "src/parallel/collective.h"

namespace mneme {

// The memory: of this process's threads and of processes that have its file descriptor.
class SharedRegion {
 public:
  static constexpr int kMaxRanks = 64;

  // Errors  kResource: no memory. kOption: another number than 1 to kMaxRanks.
  static std::shared_ptr<SharedRegion> make(int size);
  // The region of a descriptor that another process made; takes it over.
  //
  // Errors  kDevice: it is no region of this build's.
  static std::shared_ptr<SharedRegion> open(int descriptor);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  int descriptor() const { return descriptor_; }  // inherited by processes that are started from here
  int size() const;
  // As Collective::abort, of no rank.
  void abort(std::string_view why) noexcept;
  // The process that will be this rank: one that ends before it takes its place is missed at once.
  void expect_process(int rank, int pid);

  struct Layout;
  Layout* layout() const { return layout_; }

 private:
  SharedRegion() = default;
  int descriptor_ = -1;
  Layout* layout_ = nullptr;
};

class SharedCollective final : public Collective {
 public:
  struct Options {
    double seconds = 20;  // that a rank waits for the others
    int looks = 1000;     // at the others before it sleeps: some microseconds; more where each rank has idle cores
    // The longest sleep before it checks whether a rank has ended. Whatever a rank does wakes it earlier.
    double nap_seconds = 0.02;
  };
  // Requires  each rank of the region once.
  SharedCollective(std::shared_ptr<SharedRegion> region, int rank, Options options);
  SharedCollective(std::shared_ptr<SharedRegion> region, int rank) : SharedCollective(std::move(region), rank, {}) {}
  // Tells the others that it ended.
  ~SharedCollective() override;

  int rank() const override { return rank_; }
  int size() const override { return region_->size(); }
  void all_reduce(std::span<float> values) override;
  void all_gather(std::span<const std::byte> part, std::span<std::byte> out) override;
  using Collective::barrier;
  using Collective::broadcast;
  void broadcast(std::span<std::byte> bytes, int root, Patience patience) override;
  void barrier(Patience patience) override;
  void abort(std::string_view why) noexcept override { region_->abort(why); }
  std::string failure() override;

 private:
  enum class Call : std::uint32_t { kReduce = 1, kGather, kBroadcast, kBarrier };
  std::byte* buffer(int rank) const;  // of this call
  void arrive(Call call, std::size_t bytes, Patience patience = Patience::kDeadline);
  void wait_for(int rank, Patience patience);
  bool ended(int rank) const;
  [[noreturn]] void fail_all(const std::string& why);
  [[noreturn]] void fail_aborted() const;

  std::shared_ptr<SharedRegion> region_;
  int rank_;
  Options options_;
  std::uint64_t calls_ = 0;
};

}  // namespace mneme
