#include "src/engine/ranks/rank_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "src/base/check.h"
#include "src/recipes/compile.h"

namespace mneme {
namespace {

// Most calls fit one message; the bytes of longer ones follow it.
struct Header {
  std::uint64_t bytes = 0;  // of arguments
  RankCall call = RankCall::kEnd;
  bool compares_room = false;
  std::array<std::byte, 246> inlined = {};
};
static_assert(sizeof(Header) == 256 && std::is_trivially_copyable_v<Header>);

}  // namespace

void RankLink::call(RankCall call, bool room_differs, FunctionRef<void(ByteWriter&)> arguments) {
  ByteWriter out;
  arguments(out);
  std::vector<std::byte> bytes = std::move(out).take();
  Header header{.bytes = bytes.size(), .call = call, .compares_room = room_differs};
  const bool fits = bytes.size() <= header.inlined.size();
  if (fits && !bytes.empty()) std::memcpy(header.inlined.data(), bytes.data(), bytes.size());
  ranks_.broadcast(std::as_writable_bytes(std::span(&header, 1)), 0);
  if (!fits) ranks_.broadcast(bytes, 0);
  compares_room_ = room_differs;
}

RankLink::Call RankLink::next_call() {
  Header header;
  ranks_.broadcast(std::as_writable_bytes(std::span(&header, 1)), 0, Patience::kWhileTheyLive);
  Call call{.call = header.call, .arguments = std::vector<std::byte>(header.bytes)};
  if (header.bytes <= header.inlined.size()) {
    if (header.bytes > 0) std::memcpy(call.arguments.data(), header.inlined.data(), header.bytes);
  } else {
    ranks_.broadcast(call.arguments, 0);
  }
  compares_room_ = header.compares_room;
  return call;
}

void RankLink::share(std::span<std::int32_t> tokens) {
  if (!tokens.empty()) ranks_.broadcast(std::as_writable_bytes(tokens), 0);
}

bool RankLink::all(bool mine) {
  return compares_room_ ? least(mine ? 1 : 0) == 1 : mine;
}

std::int64_t RankLink::least(std::int64_t mine) {
  std::vector<std::int64_t> all(ranks_.size());
  ranks_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return *std::min_element(all.begin(), all.end());
}

void RankLink::compare_room(std::span<RequestView> views, std::int64_t& free_blocks, std::int64_t blocks_per_page) {
  if (!compares_room_) return;
  std::vector<std::int64_t> mine = {blocks_per_page, free_blocks};
  for (const RequestView& v : views) mine.push_back(v.blocks_to_end);
  const std::size_t width = mine.size();
  std::vector<std::int64_t> all(width * ranks_.size());
  ranks_.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  // In blocks of a rank with as many a page as all of them divide.
  std::int64_t common = 1;
  for (int r = 0; r < ranks_.size(); ++r) common = std::lcm(common, all[width * r]);
  for (int r = 0; r < ranks_.size(); ++r) {
    const std::int64_t* theirs = &all[width * r];
    const std::int64_t scale = common / theirs[0];
    free_blocks = r == 0 ? theirs[1] * scale : std::min(free_blocks, theirs[1] * scale);
    for (std::size_t i = 0; i < views.size(); ++i) {
      const std::int64_t needed = theirs[2 + i] * scale;
      views[i].blocks_to_end = r == 0 ? needed : std::max(views[i].blocks_to_end, needed);
    }
  }
}

namespace {

constexpr std::size_t kMaxPlans = 1024;  // that are remembered, those of no sequence included
constexpr const char* kCall = "a call of rank 0";

void put_tokens(ByteWriter& out, const std::vector<std::int32_t>& tokens) {
  out.put(std::uint64_t{tokens.size()});
  out.put_all(tokens);
}

std::vector<std::int32_t> read_tokens(ByteReader& in) {
  std::vector<std::int32_t> tokens(in.read<std::uint64_t>("a number of tokens"));
  in.fill(std::span(tokens), "tokens");
  return tokens;
}

}  // namespace

void RankRequests::write_plan(const std::shared_ptr<const Plan>& plan, ByteWriter& out) {
  if (plan == nullptr) return out.put(std::int64_t{0});
  if (ids_.size() > kMaxPlans) std::erase_if(ids_, [](const auto& known) { return known.first.expired(); });
  const auto [it, fresh] = ids_.try_emplace(plan, next_id_);
  if (fresh) ++next_id_;
  out.put(it->second);
  out.put(print_recipe(plan->recipe));
}

std::shared_ptr<const Plan> RankRequests::read_plan(ByteReader& in, Shape shape, bool without_dense_layers) {
  const auto id = in.read<std::int64_t>("a plan");
  if (id == 0) return nullptr;
  const std::string recipe(in.string("a recipe"));
  if (plans_.size() > kMaxPlans) std::erase_if(plans_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<const Plan>& known = plans_[id];
  std::shared_ptr<const Plan> plan = known.lock();
  if (plan != nullptr) return plan;
  Recipe here = parse_recipe(recipe);
  if (without_dense_layers) here.dense_layers.clear();
  known = plan = compile(here, shape());
  return plan;
}

void RankRequests::write(const RequestInput& input, ByteWriter& out) {
  put_tokens(out, input.prompt);
  put_tokens(out, input.end_tokens);
  for (const std::int32_t number :
       {input.max_tokens, input.priority, input.group, input.group_limit, input.decode_prompt_tail,
        input.score_prompt.value_or(-1), input.top_logprobs, input.question_span.first, input.question_span.second})
    out.put(number);
  for (const bool flag : {input.score_tail, input.keep_sequence, input.on_logits != nullptr})
    out.put(std::uint8_t{flag});
  write_plan(input.method, out);
}

RequestInput RankRequests::read(ByteReader& in, Shape shape, bool without_dense_layers) {
  RequestInput input;
  input.prompt = read_tokens(in);
  input.end_tokens = read_tokens(in);
  std::int32_t score_prompt = -1;
  for (std::int32_t* number :
       {&input.max_tokens, &input.priority, &input.group, &input.group_limit, &input.decode_prompt_tail, &score_prompt,
        &input.top_logprobs, &input.question_span.first, &input.question_span.second})
    *number = in.read<std::int32_t>(kCall);
  if (score_prompt >= 0) input.score_prompt = score_prompt;
  input.score_tail = in.read<std::uint8_t>(kCall) != 0;
  input.keep_sequence = in.read<std::uint8_t>(kCall) != 0;
  // Whether anybody looks decides what may be interrupted.
  if (in.read<std::uint8_t>(kCall) != 0) input.on_logits = [](std::int32_t, std::span<const float>) {};
  input.method = read_plan(in, shape, without_dense_layers);
  return input;
}

}  // namespace mneme
