#include "src/engine/ranks/rank_start.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/base/backend.h"
#include "src/base/error.h"
#include "src/base/underlying.h"
#include "src/cuda/device.h"
#include "src/engine/forward_backend.h"
#include "src/engine/kv_method.h"
#include "src/engine/ranks/rank_engine.h"
#include "src/engine/ranks/rank_pass.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"
#include "src/model/ranks/rank_checkpoint.h"
#include "src/parallel/nccl/nccl_library.h"
#include "src/recipes/recipe.h"

namespace mneme {
namespace {

constexpr const char* kOptions = "options of rank 0";

void write(const EngineOptions& o, ByteWriter& out) {
  for (const std::int64_t n : {o.context, o.kv_memory_bytes, o.kv_spill.bytes}) out.put(n);
  for (const std::int32_t n : {o.gpu_layers, o.max_sequences, o.max_batched_tokens, o.audit_every}) out.put(n);
  for (const std::uint8_t n : {underlying(o.device), underlying(o.kv_store), underlying(o.kv_cache_dtype),
                               underlying(o.kv_admission), std::uint8_t{o.deterministic}})
    out.put(n);
  out.put(o.inter_token_ms);
  out.put(o.kv.method == kAutoMethod ? o.kv.method : print_recipe(recipe_of(o.kv)));
}

void read(ByteReader& in, EngineOptions& o) {
  for (std::int64_t* n : {&o.context, &o.kv_memory_bytes, &o.kv_spill.bytes}) *n = in.read<std::int64_t>(kOptions);
  for (int* n : {&o.gpu_layers, &o.max_sequences, &o.max_batched_tokens, &o.audit_every})
    *n = in.read<std::int32_t>(kOptions);
  o.device = static_cast<Device>(in.read<std::uint8_t>(kOptions));
  o.kv_store = static_cast<KvResidency>(in.read<std::uint8_t>(kOptions));
  o.kv_cache_dtype = static_cast<KvDtype>(in.read<std::uint8_t>(kOptions));
  o.kv_admission = static_cast<KvAdmission>(in.read<std::uint8_t>(kOptions));
  o.deterministic = in.read<std::uint8_t>(kOptions) != 0;
  o.inter_token_ms = in.read<double>(kOptions);
  const std::string method(in.string(kOptions));
  o.kv = method == kAutoMethod ? KvMethodOptions{.method = method} : KvMethodOptions{.recipe = parse_recipe(method)};
}

// Before weights are read.
void expect_device(const RankSetup& ranks) {
  if (Backend<ForwardBackend>::find() == nullptr || device_count() == 0)
    fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  if (ranks.shares_gpu) return;
  const NcclLibrary nccl;
}

}  // namespace

RankSetup process_ranks() {
  const RankGroup* const group = RankGroup::current();
  if (group == nullptr) return {};
  return {.world = &group->world(),
          .ranks_here = group->ranks_here(),
          .shares_gpu = group->shares_gpu(),
          .split = group->options().pipeline_parallel > 1 ? RankSplit::kLayers : RankSplit::kHeads};
}

EngineOptions options_of_leader(Collective& world, const EngineOptions& mine) {
  std::vector<std::byte> bytes;
  if (world.rank() == 0) {
    ByteWriter out;
    write(mine, out);
    bytes = std::move(out).take();
  }
  std::uint64_t n = bytes.size();
  world.broadcast(std::as_writable_bytes(std::span(&n, 1)), 0, Patience::kWhileTheyLive);
  bytes.resize(n);
  world.broadcast(bytes, 0);
  if (world.rank() == 0) return mine;
  EngineOptions theirs = mine;
  ByteReader in(bytes, kOptions);
  read(in, theirs);
  return theirs;
}

std::unique_ptr<Engine> rank_engine(const RankSetup& ranks, std::unique_ptr<Checkpoint> whole,
                                    const SessionIdentity& identity, const EngineOptions& options,
                                    std::unique_ptr<ThreadPool> pool, const ProgressFn& progress) {
  Collective& world = *ranks.world;
  expect_agreement(world, "model", identity.weights ^ identity.tokenizer ^ identity.rope);
  EngineOptions mine = options;
  for (std::int64_t* bytes : {&mine.kv_memory_bytes, &mine.kv_spill.bytes})
    *bytes /= world.size();  // a rank stores its heads alone
  if (options.device == Device::kCuda && options.deterministic)
    fail(ErrorKind::kOption,
         "--deterministic with --device cuda: expected one GPU, found {} ranks: sums over ranks follow the number of "
         "rows; leave it out, or run on one GPU",
         world.size());
  if (options.device == Device::kCuda) expect_device(ranks);
  const CpuContext context{.pool = pool.get(), .rounding = options.deterministic ? Rounding::kFixed : Rounding::kFast};
  auto checkpoint = ranks.split == RankSplit::kLayers ? stage_checkpoint(std::move(whole), world.rank(), world.size())
                                                      : rank_checkpoint(std::move(whole), world.rank(), world.size());
  std::unique_ptr<Model> part = Model::load(std::move(checkpoint), {.context = options.context}, context, progress);
  world.barrier(Patience::kWhileTheyLive);  // disks differ
  if (options.device == Device::kCuda) {
    const ForwardBackend* backend = Backend<ForwardBackend>::find();
    return std::make_unique<RankEngine>(backend->make(std::move(part), mine, &world, ranks.split), mine,
                                        std::move(pool));
  }
  auto pass = std::make_unique<RankPass>(
      std::move(part), context, world,
      RankPass::Options{.audit_every = options.audit_every, .ranks_here = ranks.ranks_here, .split = ranks.split});
  return std::make_unique<RankEngine>(std::move(pass), mine, std::move(pool));
}

}  // namespace mneme
