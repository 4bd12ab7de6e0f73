#include "src/recipes/override_values.h"

#include "src/selection/summary/sketch.h"

namespace mneme::overrides {

void bad_value(std::string_view key, std::string_view value, std::string_view expected) {
  fail(ErrorKind::kOption, "--kv {}={}: expected {}", key, value, expected);
}

DecodeStage& decode_of(Recipe& r, std::string_view key) {
  if (!r.decode)
    fail(ErrorKind::kOption, "--kv {}: the method '{}' selects nothing, so it has no such block", key, r.name);
  return *r.decode;
}

PrefillWindow& window_of(Recipe& r, std::string_view key) {
  if (!r.prefill_window)
    fail(ErrorKind::kOption, "--kv {}: '{}' has no such block here; it needs prefill=window:N", key, r.name);
  return *r.prefill_window;
}

bool selects_in_prefill(const Recipe& r) {
  return r.prefill_window && r.decode;
}

std::vector<std::int32_t> parse_layers(std::string_view key, std::string_view value) {
  std::vector<std::int32_t> layers;
  if (value == "none") return layers;
  while (!value.empty()) {
    const std::size_t plus = value.find('+');
    layers.push_back(parse_number<std::int32_t>(key, value.substr(0, plus), 0, 100000));
    value = plus == std::string_view::npos ? std::string_view() : value.substr(plus + 1);
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

Unit parse_unit(std::string_view key, std::string_view value) {
  if (value == "token") return TokenUnit{};
  if (value.starts_with("page:")) return PageUnit{parse_number<std::int32_t>(key, value.substr(5), 1, 4096)};
  if (value.starts_with("cluster:")) return ClusterUnit{parse_number<std::int32_t>(key, value.substr(8), 1, 4096)};
  bad_value(key, value, "token, page:N or cluster:N");
}

void set_units(std::string_view key, std::string_view value, Units& units) {
  const Unit unit = parse_unit(key, value);
  const auto* wanted = std::get_if<ClusterUnit>(&unit);
  auto* clusters = std::get_if<ClusterUnit>(&units.prompt);
  if (wanted == nullptr) {
    units = Units(unit, unit);
  } else if (clusters != nullptr) {
    clusters->tokens = wanted->tokens;
  } else {
    units = Units(unit, SegmentUnit{});
  }
}

std::string print_unit(const Unit& unit) {
  if (const auto* page = std::get_if<PageUnit>(&unit)) return fmt::format("page:{}", page->tokens);
  if (const auto* clusters = std::get_if<ClusterUnit>(&unit)) return fmt::format("cluster:{}", clusters->tokens);
  return "token";
}

SegmentUnit parse_segments(std::string_view key, std::string_view value) {
  const std::size_t dash = value.find('-');
  if (dash == std::string_view::npos) bad_value(key, value, "SMALLEST-LARGEST tokens, 8-64");
  return {parse_number<std::int32_t>(key, value.substr(0, dash), 1, 4096),
          parse_number<std::int32_t>(key, value.substr(dash + 1), 1, 4096)};
}

namespace {

// The words of `index`. Behind a colon stands a number, which the setting replaces.
struct IndexWord {
  std::string_view text;
  Index index;
};
constexpr IndexWord kIndexWords[] = {{"none", NoIndex{}},
                                     {"keys", RawKeys{}},
                                     {"box", Box{BoxKind::kMinMax}},
                                     {"cuboid", Box{BoxKind::kCuboidMean}},
                                     {"one_bit", OneBit{}},
                                     {"representative", Representative{}},
                                     {"centroid", Centroid{}},
                                     {"centroids:K", CentroidSet{}},
                                     {"sketch:R", Sketch{}},
                                     {"moments", Moments{}}};

// The number behind the colon, and its largest value; null: the word has none.
std::pair<std::int32_t*, std::int32_t> number_of(Index& index) {
  if (auto* set = std::get_if<CentroidSet>(&index)) return {&set->k, kMaxCentroids};
  if (auto* sketch = std::get_if<Sketch>(&index)) return {&sketch->rank, kMaxSketchRank};
  return {};
}

// Whether the word is of this index, whatever its other settings.
bool is_of(const IndexWord& word, const Index& index) {
  const Box *box = std::get_if<Box>(&index), *own = std::get_if<Box>(&word.index);
  return word.index.index() == index.index() && (box == nullptr || box->kind == own->kind);
}

}  // namespace

std::string_view index_values() {
  static const std::string values = [] {
    std::vector<std::string_view> words;
    for (const IndexWord& word : kIndexWords) words.push_back(word.text);
    return fmt::format("{}", fmt::join(words, " | "));
  }();
  return values;
}

Index parse_index(std::string_view key, std::string_view value) {
  for (const IndexWord& word : kIndexWords) {
    Index index = word.index;
    const auto [number, largest] = number_of(index);
    const std::string_view before = word.text.substr(0, word.text.find(':') + 1);  // empty: no colon
    if (number == nullptr && value == word.text) return index;
    if (number == nullptr || !value.starts_with(before)) continue;
    *number = parse_number<std::int32_t>(key, value.substr(before.size()), 1, largest);
    return index;
  }
  bad_value(key, value, fmt::format("one of {}", index_values()));
}

std::string print_index(Index index) {
  for (const IndexWord& word : kIndexWords) {
    if (!is_of(word, index)) continue;
    const std::int32_t* number = number_of(index).first;
    if (number == nullptr) return std::string(word.text);
    return fmt::format("{}{}", word.text.substr(0, word.text.find(':') + 1), *number);
  }
  return {};
}

DropStage& drop_of(Recipe& r, std::string_view key) {
  if (!r.prefill_end)
    fail(ErrorKind::kOption, "--kv {}: the method '{}' drops nothing, so it has no such block", key, r.name);
  return *r.prefill_end;
}

DropStage& drop_of(Recipe& r, std::string_view key, Rank rank, std::string_view needed) {
  DropStage& stage = drop_of(r, key);
  if (stage.rank != rank)
    fail(ErrorKind::kOption, "--kv {}: '{}' has no such block here; it needs {}", key, r.name, needed);
  return stage;
}

bool ranks_by(const Recipe& r, Rank rank) {
  return r.prefill_end && r.prefill_end->rank == rank;
}

NormBudget& norm_of(Recipe& r, std::string_view key) {
  if (!r.norm) fail(ErrorKind::kOption, "--kv {}: '{}' has no such block here; it needs budget=norm", key, r.name);
  return *r.norm;
}

MassRows parse_rows(std::string_view key, std::string_view value) {
  if (value == "all") return AllRows{};
  return LastRows{parse_number<std::int32_t>(key, value, 1, 1024)};
}

void set_smooth(DropStage& stage, std::string_view key, std::string_view value) {
  if (value == "none") {
    stage.smooth = 1;
    stage.smooth_by = SmoothBy::kMean;
  } else if (value.starts_with("mean:") || value.starts_with("max:")) {
    const std::size_t colon = value.find(':');
    stage.smooth = parse_number<std::int32_t>(key, value.substr(colon + 1), 1, 1023);
    stage.smooth_by = value.starts_with("max:") ? SmoothBy::kMax : SmoothBy::kMean;
  } else {
    bad_value(key, value, "none, mean:N or max:N");
  }
}

Speculative& speculative_of(Recipe& r, std::string_view key, std::string_view needed) {
  return block_of<Speculative>(decode_of(r, key).schedule, r, key, needed);
}

CosineGate& gate_of(Recipe& r, std::string_view key) {
  if (auto* boundary = std::get_if<Boundary>(&decode_of(r, key).schedule)) return boundary->gate;
  constexpr std::string_view kNeeded = "schedule=speculative with gate=cosine, or schedule=boundary";
  return block_of<CosineGate>(speculative_of(r, key, kNeeded).gate, r, key, kNeeded);
}

const CosineGate* gate_of(const Recipe& r) {
  if (!r.decode) return nullptr;
  if (const auto* boundary = std::get_if<Boundary>(&r.decode->schedule)) return &boundary->gate;
  const auto* speculative = std::get_if<Speculative>(&r.decode->schedule);
  return speculative == nullptr ? nullptr : std::get_if<CosineGate>(&speculative->gate);
}

const MassGate* mass_gate_of(const Recipe& r) {
  const auto* speculative = r.decode ? std::get_if<Speculative>(&r.decode->schedule) : nullptr;
  return speculative == nullptr ? nullptr : std::get_if<MassGate>(&speculative->gate);
}

void set_gate(Recipe& r, std::string_view key, std::string_view value) {
  if (value != "cosine" && value != "mass") bad_value(key, value, "cosine or mass");
  if (value == "cosine" && gate_of(r) != nullptr) return;
  auto& gate =
      speculative_of(r, key, value == "mass" ? "schedule=speculative" : "schedule=speculative or boundary").gate;
  if (value == "cosine") {
    gate = CosineGate{};
  } else if (!std::holds_alternative<MassGate>(gate)) {
    gate = MassGate{};
  }
}

const Boundary* boundary_of(const Recipe& r) {
  return r.decode ? std::get_if<Boundary>(&r.decode->schedule) : nullptr;
}

Boundary& boundary_of(Recipe& r, std::string_view key) {
  return block_of<Boundary>(decode_of(r, key).schedule, r, key, "schedule=boundary");
}

const ClusterUnit* clusters_of(const Recipe& r) {
  return r.decode ? std::get_if<ClusterUnit>(&r.decode->units.prompt) : nullptr;
}

ClusterUnit& clusters_of(Recipe& r, std::string_view key) {
  return block_of<ClusterUnit>(decode_of(r, key).units.prompt, r, key, "unit=cluster:N");
}

void parse_schedule(std::string_view key, std::string_view value, Schedule& schedule) {
  if (value == "every_step") return set_schedule<EveryStep>(schedule);
  if (value == "speculative") return set_schedule<Speculative>(schedule);
  if (value == "boundary") return set_schedule<Boundary>(schedule);
  bad_value(key, value, "every_step, speculative or boundary");
}

std::string print_schedule(const Schedule& schedule) {
  if (std::holds_alternative<EveryStep>(schedule)) return "every_step";
  return std::holds_alternative<Speculative>(schedule) ? "speculative" : "boundary";
}

const OneBit* one_bit_of(const Recipe& r) {
  return r.decode ? std::get_if<OneBit>(&r.decode->index) : nullptr;
}

void parse_cutoff(std::string_view key, std::string_view value, Cutoff& cutoff) {
  const auto* before = std::get_if<EntropyShare>(&cutoff);
  const bool in_prefill = before != nullptr && before->in_prefill;
  if (value == "constant")
    cutoff = ConstantCut{};
  else if (value.starts_with("top_p:"))
    cutoff = TopP{parse_number<float>(key, value.substr(6), 0.0f, 1.0f)};
  else if (value == "entropy" || value == "reversed")
    cutoff = EntropyShare{.reversed = value == "reversed", .in_prefill = in_prefill};
  else
    bad_value(key, value, "constant, entropy, reversed or top_p:P");
}

std::string print_cutoff(const Cutoff& cutoff) {
  if (const auto* top_p = std::get_if<TopP>(&cutoff)) return fmt::format("top_p:{}", top_p->p);
  const auto* share = std::get_if<EntropyShare>(&cutoff);
  return share == nullptr ? "constant" : share->reversed ? "reversed" : "entropy";
}

void parse_share(std::string_view key, std::string_view value, Share& share) {
  const auto dash = value.find('-');
  if (value == "even")
    share = EvenShare{};
  else if (value.starts_with("pyramid:"))
    share = PyramidShare{parse_number<std::int32_t>(key, value.substr(8), 1, 1000)};
  else if (value.starts_with("heads:"))
    share = HeadShare{.floor = parse_number<float>(key, value.substr(6), 0.0f, 1.0f)};
  else if (value.starts_with("heads_safe:"))
    share = HeadShare{.floor = parse_number<float>(key, value.substr(11), 0.0f, 1.0f), .exact = true};
  else if (value.starts_with("preference:") && dash != value.npos)
    share = PreferenceShare{parse_number<float>(key, value.substr(11, dash - 11), 0.01f, 100.0f),
                            parse_number<float>(key, value.substr(dash + 1), 0.01f, 100.0f)};
  else
    bad_value(key, value, "even, pyramid:BETA, heads:FLOOR, heads_safe:FLOOR or preference:TAU1-TAU2");
}

std::string print_share(const Share& share) {
  if (const auto* p = std::get_if<PyramidShare>(&share)) return fmt::format("pyramid:{}", p->beta);
  if (const auto* h = std::get_if<HeadShare>(&share))
    return fmt::format("{}:{}", h->exact ? "heads_safe" : "heads", h->floor);
  if (const auto* p = std::get_if<PreferenceShare>(&share)) return fmt::format("preference:{}-{}", p->tau1, p->tau2);
  return "even";
}

}  // namespace mneme::overrides
