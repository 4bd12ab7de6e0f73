// Thousands of requests of all kinds with memory for a tenth of them, over memory, a host tier and disk, while steps fail, clients go
// away and the disk errs: each answers what it answers alone, or a part of that when it was cancelled, and in the end
// nothing is left.
#include <gtest/gtest.h>

#include <deque>

#include "src/base/rng.h"
#include "src/engine/kv_method.h"
#include "tests/engine/loop/faulty_disk.h"
#include "tests/engine/loop/sharing.h"
#include "tests/sanitized.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

constexpr int kRequests = kSanitized ? 150 : 1000;  // of each kind of admission
constexpr std::size_t kInFlight = kSanitized ? 50 : 200;
// A request takes 9 pages on average, some of which it shares.
constexpr std::int64_t kPages = kSanitized ? 40 : 100;

class Soak {
 public:
  Soak(Sharing& sharing, std::uint64_t seed) : s_(sharing), rng_(seed) {
    const MethodShape shape{.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 8};
    for (const char* method : {"quest", "freekv", "streaming_llm"})
      plans_.push_back(compile(recipe_of({.method = method, .budget = 128, .sink = 32, .recent = 32}), shape));
  }

  void run() {
    int steps = 0;
    while ((n_submitted_ < kRequests || !live_.empty()) && !testing::Test::HasFailure()) {
      ASSERT_LT(++steps, 200 * kRequests);
      const std::size_t burst = rng_.below(4) == 0 ? rng_.below(30) : 0;
      for (std::size_t i = 0; i < burst && n_submitted_ < kRequests && live_.size() < kInFlight; ++i) submit();
      if (!live_.empty() && rng_.below(30) == 0) cancel();
      if (rng_.below(60) == 0) s_.log().fail_in = static_cast<int>(rng_.below(3));
      step();
    }
  }
  int n_whole() const { return n_whole_; }

 private:
  struct Live {
    const GenerationInput* input;
    std::int32_t max_tokens;
  };

  void submit() {
    const std::uint64_t d = rng_.below(14);
    const auto document = random_prompt(32 + 29 * d, 1000 + d);
    GenerationInput input = input_of(joined(document, random_prompt(1 + rng_.below(50), rng_.next())),
                                     static_cast<std::int32_t>(rng_.below(4)), rng_.below(5) == 0 ? "other" : "");
    if (rng_.below(3) == 0) input.method = plans_[rng_.below(plans_.size())];
    if (rng_.below(4) == 0) {
      input.group = 1 + static_cast<std::int32_t>(rng_.below(2));
      input.group_limit = 3;
    }
    inputs_.push_back(std::move(input));
    // Answers become long where those before them were short: that is what no forecast foresees.
    const bool long_ones = n_submitted_ > kRequests * 3 / 4;
    const auto max_tokens = static_cast<std::int32_t>(1 + (long_ones ? 150 + rng_.below(150) : rng_.below(16)));
    live_[s_.submit(inputs_.back(), max_tokens)] = {&inputs_.back(), max_tokens};
    ++n_submitted_;
  }

  std::vector<std::int32_t> expected(const Live& live) const {
    RequestInput alone = request(live.input->prompt, live.max_tokens);
    alone.end_tokens = {};
    return answer_alone(live.input->prompt, alone).tokens;
  }

  void cancel() {
    auto it = live_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng_.below(live_.size())));
    const auto [id, live] = *it;
    const std::vector<std::int32_t> all = expected(live), got = s_.answers[id];
    ASSERT_LE(got.size(), all.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << "request " << id.value;
    s_.cancel(id);
    forget(id);
  }

  void step() {
    try {
      s_.step();
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), ErrorKind::kResource) << e.what();
    }
    for (const RequestId id : s_.take_ended()) {
      const auto it = live_.find(id);
      if (it == live_.end()) continue;
      EXPECT_EQ(s_.answers[id], expected(it->second)) << "request " << id.value;
      ++n_whole_;
      forget(id);
    }
    if (s_.keeper().host() != nullptr) s_.keeper().host()->store().check_invariants();
    if (s_.keeper().disk() != nullptr) s_.keeper().disk()->check_invariants();
  }

  void forget(RequestId id) {
    live_.erase(id);
    s_.answers.erase(id);
    s_.shared.erase(id);
  }

  Sharing& s_;
  Rng rng_;
  std::vector<std::shared_ptr<const Plan>> plans_;
  std::deque<GenerationInput> inputs_;
  std::map<RequestId, Live> live_;
  int n_submitted_ = 0, n_whole_ = 0;
};

// Memory for a quarter of the pool; the others lie in a file.
EngineOptions spilling(EngineOptions o, const std::filesystem::path& folder) {
  const std::int64_t all = o.kv_memory_bytes;
  o.kv_memory_bytes = all / 4;
  o.kv_spill = {.folder = folder / "spill", .bytes = all - all / 4};
  return o;
}

enum class Below : std::uint8_t { kDisk, kSpillFileAndDisk, kHostTierAndDisk };

void soak(Below below) {
  const bool spills = below == Below::kSpillFileAndDisk, tier = below == Below::kHostTierAndDisk;
  for (const KvAdmission admission : {KvAdmission::kReserve, KvAdmission::kForecast}) {
    TempFolder folder(TempFolder::memory());
    // Room for a third of what the documents have.
    KeeperOptions options{.prefix_cache = true, .n_slots = 0, .host_bytes = tier ? 20 * 4096 : 0};
    // Few pages are read where host memory has them.
    const std::uint64_t errors = tier ? 15 : 2;
    DiskFaults faults{.write_errors = 2, .read_errors = errors, .damages = errors};
    options.disk = DiskOptions{
        .folder = folder.path() / "kv", .bytes = 40 * 4096, .wrap = [&faults](std::unique_ptr<SlotFile> file) {
          return std::make_unique<FaultyDisk>(std::move(file), faults, 4096);
        }};
    EngineOptions engine = Sharing::options(kPages, 256, 64, admission);
    if (spills) engine = spilling(engine, folder.path());
    Sharing sharing(options, engine);
    Soak life(sharing, admission == KvAdmission::kReserve ? 1 : 2);
    life.run();
    EXPECT_GT(life.n_whole(), kRequests / 2);
    EXPECT_EQ(sharing.waits().waiting(), 0);
    if (admission == KvAdmission::kForecast) {
      EXPECT_GT(sharing.engine().counts().preemptions, 0);
    }
    EXPECT_GT(sharing.keeper().disk()->stats().loaded, 0);
    EXPECT_GT(sharing.keeper().disk()->stats().evicted, 0);
    // Each bad read is noticed, and each page that could not be written is none.
    EXPECT_EQ(sharing.keeper().disk()->stats().failed_reads, faults.n_bad_reads);
    EXPECT_EQ(sharing.keeper().disk()->stats().failed_writes, faults.n_write_errors);
    EXPECT_GT(faults.n_bad_reads, 0);
    EXPECT_GT(faults.n_write_errors, 0);
    if (tier) {
      const HostStore::Stats host = sharing.keeper().host()->store().stats();
      EXPECT_GT(host.loaded, 0);
      EXPECT_GT(host.evicted, 0);
      if (admission == KvAdmission::kForecast) {
        EXPECT_GT(sharing.engine().counts().returned_tokens, 0);
      }
    }
    sharing.give_all_up();
    EXPECT_EQ(sharing.engine().pool().n_free(), sharing.engine().pool().n_blocks());
    if (spills) {
      EXPECT_GT(sharing.engine().pool().spill_stats()->fetched_bytes, 0);
    }
  }
}

TEST(Soak, EveryRequestAnswersOrIsCancelled) {
  soak(Below::kDisk);
}
TEST(Soak, EveryRequestAnswersOverMemoryASpillFileAndADisk) {
  soak(Below::kSpillFileAndDisk);
}
TEST(Soak, EveryRequestAnswersOverMemoryAHostTierAndADisk) {
  soak(Below::kHostTierAndDisk);
}

}  // namespace
}  // namespace mneme
