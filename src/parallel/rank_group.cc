#include "src/parallel/rank_group.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/thread_pool.h"
#include "src/parallel/shared_collective.h"
#include "src/parallel/socket_collective.h"

namespace mneme {
namespace {

using namespace std::chrono_literals;

RankGroup* g_current = nullptr;

// Tests alone: ranks of one host may share a GPU, over a collective through host memory.
bool gpus_may_be_shared() {
  return std::getenv("MNEME_RANKS_SHARE_GPU") != nullptr;
}

std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string argument; std::getline(in, argument, '\0');) out.push_back(argument);
  if (out.empty()) fail(ErrorKind::kResource, "/proc/self/cmdline cannot be read: no other rank can be started");
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> out;
  for (char** v = environ; *v != nullptr; ++v) {
    const std::string_view name = std::string_view(*v).substr(0, std::string_view(*v).find('='));
    if (std::none_of(changes.begin(), changes.end(), [&](const auto& c) { return c.first == name; }))
      out.emplace_back(*v);
  }
  for (const auto& [name, value] : changes) out.push_back(name + "=" + value);
  return out;
}

// Between fork and exec only calls that are safe there.
int start_process(std::vector<std::string> arguments, std::vector<std::string> variables) {
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::kResource, "no process for another rank: {}", std::strerror(errno));
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  if (const int none = open("/dev/null", O_RDONLY); none >= 0) dup2(none, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  execve("/proc/self/exe", argv.data(), envp.data());
  _exit(127);
}

// The names by which CUDA knows this host's GPUs, of those that the user lets this process see.
std::string visible_gpu(int gpu) {
  const char* seen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (seen == nullptr || *seen == '\0') return std::to_string(gpu);
  std::string_view rest = seen;
  for (int i = 0; i < gpu && !rest.empty(); ++i) rest = rest.substr(std::min(rest.find(','), rest.size() - 1) + 1);
  if (rest.empty()) fail(ErrorKind::kOption, "--gpus: CUDA_VISIBLE_DEVICES={} has no GPU {}", seen, gpu);
  return std::string(rest.substr(0, rest.find(',')));
}

std::vector<int> gpus_of(const RankOptions& o, int n) {
  if (!o.gpus.empty() && gpus_may_be_shared() && o.gpus.find_first_not_of("0,") == std::string::npos)
    return std::vector<int>(n, 0);
  if (!o.gpus.empty()) return parse_gpu_list(o.gpus, n);
  std::vector<int> gpus(n);
  for (int i = 0; i < n; ++i) gpus[i] = i;
  return gpus;
}

void expect_sizes(const RankOptions& o) {
  if (o.tensor_parallel > 1 && o.pipeline_parallel > 1)
    fail(ErrorKind::kUnsupported, "--tensor-parallel-size {} and --pipeline-parallel-size {}: expected one of the two",
         o.tensor_parallel, o.pipeline_parallel);
  if (o.size() > SharedRegion::kMaxRanks)
    fail(ErrorKind::kOption, "--tensor-parallel-size {}: expected at most {} ranks in all, found {}", o.tensor_parallel,
         SharedRegion::kMaxRanks, o.size());
  if (o.size() % o.n_nodes != 0 || o.node_rank >= o.n_nodes)
    fail(ErrorKind::kOption, "--nnodes {} --node-rank {}: {} ranks cannot be shared out so", o.n_nodes, o.node_rank,
         o.size());
  if (o.n_nodes > 1 && o.address.empty())
    fail(ErrorKind::kOption, "--nnodes {}: expected --dist-init-addr HOST:PORT, of the first host", o.n_nodes);
}

// This process's place before it has started any other.
RankPlace place_of(const RankOptions& o) {
  std::optional<RankPlace> place = rank_place_of_environment();
  if (place && place->size == o.size()) return *place;
  if (place && place->size > 1)
    fail(ErrorKind::kOption, "{} started {} ranks, and --tensor-parallel-size {} --pipeline-parallel-size {} are {}",
         place->launcher, place->size, o.tensor_parallel, o.pipeline_parallel, o.size());
  return {.rank = o.node_rank * (o.size() / o.n_nodes), .size = o.size(), .local_rank = 0, .launcher = ""};
}

// torchrun's own store listens at MASTER_PORT.
std::string address_of(const RankOptions& o, const RankPlace& place) {
  if (!o.address.empty()) return o.address;
  const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
  if (host == nullptr || port == nullptr || std::atoi(port) <= 0)
    fail(ErrorKind::kOption, "ranks that {} started need --dist-init-addr HOST:PORT, of rank 0", place.launcher);
  return fmt::format("{}:{}", host, std::atoi(port) + 1);
}

// MNEME_RANK_SECONDS: what tests shorten. A rank with a GPU has idle cores: it looks for some 100 us before it sleeps,
// as waking up takes some 50.
SharedCollective::Options patience_of(const RankOptions& o) {
  SharedCollective::Options patience;
  if (const char* text = std::getenv("MNEME_RANK_SECONDS"); text != nullptr && std::atof(text) > 0)
    patience.seconds = std::atof(text);
  if (o.on_device) patience.looks = 200'000;
  return patience;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

bool RankGroup::shares_gpu() const {
  return gpus_may_be_shared();
}

RankGroup* RankGroup::current() noexcept {
  return g_current;
}

RankGroup::RankGroup(const RankOptions& options, const RankPlace& place) : options_(options), place_(place) {
  MNEME_CHECK(g_current == nullptr, "this process is a rank already");
  g_current = this;
}

std::unique_ptr<RankGroup> RankGroup::join(const RankOptions& options, const std::string& build,
                                           const std::string& what_is_asked) {
  if (options.size() == 1) {
    if (!options.gpus.empty()) parse_gpu_list(options.gpus, 1);
    return nullptr;
  }
  expect_sizes(options);
  const RankPlace place = place_of(options);
  std::unique_ptr<RankGroup> group(new RankGroup(options, place));
  group->ranks_here_ = options.size() / options.n_nodes;
  const SharedCollective::Options patience = patience_of(options);
  if (place.launcher.empty()) {
    group->start_others();
  } else if (place.shared_region >= 0) {
    group->world_ = std::make_unique<SharedCollective>(SharedRegion::open(place.shared_region), place.rank, patience);
    group->shares_memory_ = true;
  } else {
    if (options.on_device && !group->was_started_by_rank()) group->take_gpu(place.local_rank);
    group->world_ = socket_collective(address_of(options, place), place.rank, place.size, patience.seconds);
  }
  group->take_share_of_host(place.local_rank);
  if (place.rank != 0) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
  }
  group->world_->barrier(Patience::kWhileTheyLive);  // a slow start is no failure
  expect_agreement(*group->world_, "build of mneme", hash_of(build));
  expect_agreement(*group->world_, "options", hash_of(what_is_asked));
  return group;
}

// This host's other ranks. Those of one host share memory; those of several talk through rank 0's address.
void RankGroup::start_others() {
  const std::vector<int> gpus = options_.on_device ? gpus_of(options_, ranks_here_) : std::vector<int>{};
  std::shared_ptr<SharedRegion> region;
  if (options_.n_nodes == 1) region = SharedRegion::make(place_.size);
  for (int local = 1; local < ranks_here_; ++local) {
    std::vector<std::pair<std::string, std::string>> variables = {
        {"MNEME_RANK", std::to_string(place_.rank + local)},
        {"MNEME_RANKS", std::to_string(place_.size)},
        {"MNEME_LOCAL_RANK", std::to_string(local)},
        {"MNEME_RANK_MEMORY", region ? std::to_string(region->descriptor()) : ""}};
    if (!gpus.empty()) variables.emplace_back("CUDA_VISIBLE_DEVICES", visible_gpu(gpus[local]));
    children_.push_back(start_process(command_line(), environment_with(variables)));
    if (region) region->expect_process(local, children_.back());
  }
  if (!gpus.empty()) setenv("CUDA_VISIBLE_DEVICES", visible_gpu(gpus[0]).c_str(), 1);
  shares_memory_ = region != nullptr;
  const SharedCollective::Options patience = patience_of(options_);
  if (region) {
    world_ = std::make_unique<SharedCollective>(region, 0, patience);
  } else {
    world_ = socket_collective(options_.address, place_.rank, place_.size, patience.seconds);
  }
}

// Each rank that a launcher started takes its own GPU.
void RankGroup::take_gpu(int local_rank) const {
  const auto named = static_cast<int>(std::count(options_.gpus.begin(), options_.gpus.end(), ',')) + 1;
  const std::vector<int> gpus = gpus_of(options_, options_.gpus.empty() ? local_rank + 1 : named);
  if (local_rank >= std::ssize(gpus))
    fail(ErrorKind::kOption, "--gpus {}: rank {} of this host has none", options_.gpus, local_rank);
  setenv("CUDA_VISIBLE_DEVICES", visible_gpu(gpus[local_rank]).c_str(), 1);
}

// Threads of ranks on one host take CPUs of their own.
void RankGroup::take_share_of_host(int local_rank) const {
  const std::vector<int> cpus = affinity_cpus();
  const auto n = static_cast<int>(cpus.size());
  const int first = local_rank * n / ranks_here_, count = std::max(n / ranks_here_, 1);
  restrict_to(std::span(cpus).subspan(first, std::min(count, n - first)));
}

RankWatch::RankWatch(const RankGroup& group, std::function<void(const std::string& why)> on_failure)
    : thread_([this, &world = group.world(), act = std::move(on_failure)] { run(world, act); }) {}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankWatch::run(Collective& world, const std::function<void(const std::string& why)>& on_failure) {
  constexpr auto kLook = 200ms;
  constexpr auto kGrace = 8s;  // beside the 20 s of a collective's deadline: 30 in all
  const auto ends = [&] { return ends_; };
  std::string why;
  std::unique_lock lock(mutex_);
  while (why.empty()) {
    if (changed_.wait_for(lock, kLook, ends)) return;
    why = world.failure();
  }
  lock.unlock();
  on_failure(why);
  lock.lock();
  if (changed_.wait_for(lock, kGrace, ends)) return;
  fmt::print(stderr, "mneme: error: the ranks stopped: {}\n", why);
  _exit(1);
}

RankGroup::~RankGroup() {
  world_.reset();              // tells the others that this one has ended
  constexpr int kLooks = 500;  // of 10 ms
  for (const int child : children_) {
    int looks = 0;
    while (waitpid(child, nullptr, WNOHANG) == 0 && ++looks < kLooks) std::this_thread::sleep_for(10ms);
    if (looks < kLooks) continue;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  g_current = nullptr;
}

}  // namespace mneme
