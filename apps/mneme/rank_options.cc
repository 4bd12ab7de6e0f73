#include "apps/mneme/rank_options.h"

#include <fmt/format.h>

#include <string>

#include "apps/mneme/commit.h"
#include "apps/mneme/options.h"
#include "mneme/mneme.h"
#include "src/base/error.h"
#include "src/engine/kv_method.h"

namespace mneme::cli {
namespace {

std::string asked(const RankOptions& r, const EngineOptions& e) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", r.tensor_parallel, r.pipeline_parallel,
                     name_of(e.device), e.gpu_layers, name_of(e.kv_store), name_of(e.kv_cache_dtype), e.context,
                     e.kv_memory_bytes, e.kv_spill.bytes, e.max_sequences, e.max_batched_tokens,
                     name_of(e.kv_admission), e.deterministic, e.audit_every,
                     e.kv.method == kAutoMethod ? e.kv.method : print_recipe(recipe_of(e.kv)));
}

}  // namespace

void add_rank_options(CLI::App& c, RankOptions& o) {
  const auto add = [](CLI::Option* option) { option->group("Several GPUs and machines"); };
  add(c.add_option("--tensor-parallel-size", o.tensor_parallel,
                   "Ranks that share every layer's heads: a process each, with a GPU each under --device cuda")
          ->type_name("N")
          ->capture_default_str()
          ->check(whole_number(1, 64)));
  add(c.add_option("--pipeline-parallel-size", o.pipeline_parallel,
                   "Ranks that share the layers, in place of their heads: for a model that one machine does not hold")
          ->type_name("N")
          ->capture_default_str()
          ->check(whole_number(1, 64)));
  add(c.add_option("--gpus", o.gpus, "GPUs of this machine's ranks, as in 0,1 (default: the first ones)")
          ->type_name("N,...")
          ->check(not_empty()));
  add(c.add_option("--nnodes", o.n_nodes, "Machines that the ranks are on, as many on each")
          ->type_name("N")
          ->capture_default_str()
          ->check(whole_number(1, 64)));
  add(c.add_option("--node-rank", o.node_rank, "Which of them this one is; the first one leads")
          ->type_name("N")
          ->capture_default_str()
          ->check(whole_number(0, 63)));
  add(c.add_option("--dist-init-addr", o.address,
                   "Where rank 0 listens for the others, in a private network (default of torchrun's ranks: its "
                   "address, the next port)")
          ->type_name("HOST:PORT")
          ->check(not_empty()));
}

std::unique_ptr<RankGroup> join_ranks(RankOptions options, const EngineOptions& engine) {
  options.on_device = engine.device == Device::kCuda;
  if (!options.gpus.empty() && !options.on_device) fail(ErrorKind::kOption, "--gpus: only with --device cuda");
  return RankGroup::join(options, fmt::format("{} {}", version(), build_commit()), asked(options, engine));
}

int follow_leader(const RankGroup& ranks, const std::filesystem::path& model, const EngineOptions& engine,
                  const std::function<DiskCalls(const RunningModel& running)>& disk) {
  try {
    RunningModel running = start_model(Checkpoint::open(model), nullptr, engine, {});
    follow(running, disk ? disk(running) : DiskCalls{});
    return 0;
  } catch (const Error& e) {
    ranks.world().abort(fmt::format("rank {}: {}", ranks.world().rank(), e.what()));
    if (!ranks.was_started_by_rank()) throw;
    return 1;
  }
}

}  // namespace mneme::cli
